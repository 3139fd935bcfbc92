// The still picture that the notebook's file keeps of a widget, in an output of its own.
// A page that shows the widget hides it, and nothing else: it is known by what its SVG says.

import { el, type Cleanup } from "./dom";
import type { Model } from "./model";

const ID = /^[0-9a-f]{32}$/;

/** Hide the picture as long as this view is there, wherever on the page a front end has put it. */
export function hide_still(model: Model, root: HTMLElement, cleanup: Cleanup): void {
  const style = root.appendChild(el("style"));
  const show = (): void => {
    const id = String(model.get("still_id") ?? "");
    style.textContent = ID.test(id) ? rules(id) : "";
  };
  model.on("change:still_id", show);
  cleanup.add(() => model.off("change:still_id", show));
  cleanup.add(() => style.remove());
  show();
}

function rules(id: string): string {
  const image = `img[src*="${id}"]`;
  return [
    // Some have it as an element of the page (VS Code), some as an image whose address is its text (JupyterLab).
    `svg[data-px-still="${id}"], ${image} { display: none; }`,
    // JupyterLab's output would be an empty line; one around it that holds others (`Output`) stays.
    `.jp-OutputArea-child:has(> .jp-OutputArea-output > ${image}) { display: none; }`,
  ].join("\n");
}
