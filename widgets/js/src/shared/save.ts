// Saves files from a page: text, and the panels as one picture.

import { el } from "./dom";

// Pixels.
const GAP = 16;
const HEAD = 40;
const CAPTION = 18;
const ROW = 20; // height of a legend row
const SAMPLE = 26; // length of a sample line in the legend

function download(name: string, url: string): void {
  el("a", { href: url, download: name }).click();
}

export function save_text(name: string, text: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  download(name, url);
  // By then the browser has read the data.
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** A legend entry: the look of a line, and its name. */
export interface Named {
  words: string;
  colour: string;
  width: number;
  dash: number[];
}

export interface Captioned {
  caption: string;
  canvas: HTMLCanvasElement;
}

/** Save panels side by side, each under its caption, with a title above and a legend below. */
export function save_png(name: string, title: string, panels: Captioned[], legend: Named[], root: HTMLElement): void {
  const ratio = devicePixelRatio;
  const look = getComputedStyle(root);
  const width = panels.reduce((sum, { canvas }) => sum + canvas.width + GAP * ratio, GAP * ratio);
  const tallest = Math.max(...panels.map(({ canvas }) => canvas.height), 0);
  const canvas = el("canvas", { width, height: 1 });
  const context = canvas.getContext("2d");
  if (!context) return;
  const places = arrange(context, legend, width, ratio);
  const n_rows = (places[places.length - 1]?.row ?? -1) + 1;
  canvas.height = tallest + (HEAD + CAPTION + n_rows * ROW + GAP) * ratio; // setting the size resets the canvas state
  context.fillStyle = look.backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = look.color;
  context.font = `bold ${15 * ratio}px system-ui`;
  context.fillText(title, GAP * ratio, 26 * ratio);
  context.font = font(ratio);
  let x = GAP * ratio;
  for (const one of panels) {
    context.fillText(one.caption, x, (HEAD + 10) * ratio);
    context.drawImage(one.canvas, x, (HEAD + CAPTION) * ratio);
    x += one.canvas.width + GAP * ratio;
  }
  for (const { line, left, row } of places) {
    const y = tallest + (HEAD + CAPTION + row * ROW + ROW / 2) * ratio;
    context.strokeStyle = line.colour;
    context.lineWidth = line.width * ratio;
    context.setLineDash(line.dash.map((pixels) => pixels * ratio));
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(left + SAMPLE * ratio, y);
    context.stroke();
    context.fillText(line.words, left + (SAMPLE + 8) * ratio, y + 4 * ratio);
  }
  download(name, canvas.toDataURL("image/png"));
}

function font(ratio: number): string {
  return `${12 * ratio}px system-ui`;
}

/** Place legend entries from left to right, in rows of limited width. */
function arrange(
  context: CanvasRenderingContext2D,
  legend: Named[],
  width: number,
  ratio: number,
): { line: Named; left: number; row: number }[] {
  context.font = font(ratio);
  const start = GAP * ratio;
  let [left, row] = [start, 0];
  return legend.map((line) => {
    const room = (SAMPLE + 8 + GAP) * ratio + context.measureText(line.words).width;
    if (left > start && left + room > width) [left, row] = [start, row + 1];
    const place = { line, left, row };
    left += room;
    return place;
  });
}
