// From a lane to the notebook's cell: JupyterLab and Notebook 7 show its number on the page.
// It knows their classes; elsewhere (VS Code keeps widgets apart from cells) there is nothing to find.

import { set_text } from "../shared/dom";

const SHOWN_MS = 2000;

/** Bring the cell of a number into sight; false where it is not on this page. */
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

/** Say where a cell is that cannot be shown. */
export function tell_cell(said: Element, number: number): void {
  set_text(
    said,
    number > 0
      ? `it is cell [${number}] of the notebook, which is not on this page`
      : "which cell of the notebook that was is not known: it ran before this view, or another process runs it",
  );
}
