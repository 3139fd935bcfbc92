// The still picture that the notebook's file keeps of a widget, in the output after the widget's.
// A page that shows the widget hides it: by the class that is put here, in theme.css.

import type { Model } from "./model";

export function hide_still(model: Model, root: HTMLElement): void {
  root.classList.toggle("px-still-beside", model.get("has_still_beside") === true);
}
