// Files out of a page: text as it came, and the panels as one picture.

import { el } from "./dom";

const GAP = 16;
const HEAD = 40;

function download(name: string, url: string): void {
  el("a", { href: url, download: name }).click();
}

export function save_text(name: string, text: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  download(name, url);
  // The browser has taken it when its turn comes.
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

export function save_png(name: string, title: string, panels: HTMLCanvasElement[], root: HTMLElement): void {
  const ratio = devicePixelRatio;
  const width = panels.reduce((sum, panel) => sum + panel.width + GAP * ratio, GAP * ratio);
  const height = Math.max(...panels.map((panel) => panel.height), 0) + (HEAD + GAP) * ratio;
  const canvas = el("canvas", { width, height });
  const context = canvas.getContext("2d");
  if (!context) return;
  const look = getComputedStyle(root);
  context.fillStyle = look.backgroundColor;
  context.fillRect(0, 0, width, height);
  context.fillStyle = look.color;
  context.font = `bold ${15 * ratio}px system-ui`;
  context.fillText(title, GAP * ratio, 26 * ratio);
  let x = GAP * ratio;
  for (const panel of panels) {
    context.drawImage(panel, x, HEAD * ratio);
    x += panel.width + GAP * ratio;
  }
  download(name, canvas.toDataURL("image/png"));
}
