// Uses the DOM of the notebook around a widget: hides the still picture that the notebook's file keeps in a separate output (found by
// a mark in its SVG), and scrolls to a cell. VS Code separates widgets from cells, so it finds no cell there.

const SHOWN_MS = 2000;
const ID = /^[0-9a-f]{32}$/;

/** Return the style that hides a picture, anywhere on the page. */
export function still_rules(id: string): string {
  if (!ID.test(id)) return "";
  const image = `img[src*="${id}"]`;
  return [
    // VS Code has it as an SVG element, JupyterLab as an image with the SVG text in its address.
    `svg[data-px-still="${id}"], ${image} { display: none; }`,
    // JupyterLab's output would stay as an empty line. An outer output that holds others (`Output`) stays.
    `.jp-OutputArea-child:has(> .jp-OutputArea-output > ${image}) { display: none; }`,
  ].join("\n");
}

/** Scroll to the cell of a number, found by the CSS classes of JupyterLab and Notebook 7; return false if it is not on this page. */
export function jump_to_cell(root: HTMLElement, number: number): boolean {
  const page = root.closest(".jp-Notebook") ?? root.ownerDocument;
  const prompts = [...page.querySelectorAll<HTMLElement>(".jp-CodeCell .jp-InputPrompt")];
  const wanted = number < 0 ? "[*]:" : `[${number}]:`;
  const found = prompts.find((prompt) => prompt.textContent?.trim() === wanted);
  const cell = found?.closest<HTMLElement>(".jp-CodeCell");
  if (!cell) return false;
  cell.scrollIntoView({ block: "center" });
  const before = cell.style.outline;
  cell.style.outline = "2px solid var(--jp-brand-color1, #0072b2)";
  setTimeout(() => (cell.style.outline = before), SHOWN_MS);
  return true;
}

/** Name a cell that cannot be shown. */
export function say_cell(number: number): string {
  return number > 0
    ? `it is cell [${number}] of the notebook, which is not on this page`
    : "which cell of the notebook that was is not known: it ran before this view, or another process runs it";
}
