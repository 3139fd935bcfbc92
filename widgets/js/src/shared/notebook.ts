// Uses the DOM of the notebook around a widget: hides the still picture that the notebook's file keeps in a separate output (found by
// a mark in its SVG), and scrolls to a cell. VS Code separates widgets from cells, so it finds no cell there.

import { el, set_text, type Disposables } from "./dom";
import type { Model } from "./model";

const SHOWN_MS = 2000;
const ID = /^[0-9a-f]{32}$/;

/** Hide the picture while this view exists, anywhere on the page. */
export function hide_still(model: Model, root: HTMLElement, disposables: Disposables): void {
  const style = root.appendChild(el("style"));
  const show = (): void => {
    const id = String(model.get("still_id") ?? "");
    style.textContent = ID.test(id) ? rules(id) : "";
  };
  model.on("change:still_id", show);
  disposables.add(() => model.off("change:still_id", show));
  disposables.add(() => style.remove());
  show();
}

function rules(id: string): string {
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
export function tell_cell(said: Element, number: number): void {
  set_text(
    said,
    number > 0
      ? `it is cell [${number}] of the notebook, which is not on this page`
      : "which cell of the notebook that was is not known: it ran before this view, or another process runs it",
  );
}
