// Saves text as a file from a page.

export function save_text(name: string, text: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  // By then the browser has read the data.
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
