// Reads the page's colours for canvases, and watches for their change.

import type { Disposables } from "./dom";

/** Return the current value of a theme.css colour for an element. */
export function colour(element: Element, name: string): string {
  return getComputedStyle(element).getPropertyValue(`--px-${name}`).trim() || "#888";
}

/** Call `call` when the theme changes, as canvases keep the colours they were drawn in. */
export function on_theme(disposables: Disposables, call: () => void): void {
  if (typeof MutationObserver !== "undefined") {
    const pages = new MutationObserver(call);
    pages.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
    disposables.add(() => pages.disconnect());
  }
  if (typeof matchMedia === "undefined") return;
  for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
    disposables.on(matchMedia(query), "change", call);
  }
}
