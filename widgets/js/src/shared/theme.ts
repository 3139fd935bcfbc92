// The page's colours, for what is drawn on a canvas, and when they change. It knows no widget.

import type { Cleanup } from "./dom";

/** One of the colours of theme.css, as it is for this element now. */
export function colour(element: Element, name: string): string {
  return getComputedStyle(element).getPropertyValue(`--px-${name}`).trim() || "#888";
}

/** Call when the page or the reader takes another theme: canvases keep the colours they were drawn in. */
export function on_theme(cleanup: Cleanup, call: () => void): void {
  if (typeof MutationObserver !== "undefined") {
    const pages = new MutationObserver(call);
    pages.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
    cleanup.add(() => pages.disconnect());
  }
  if (typeof matchMedia === "undefined") return;
  for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
    cleanup.on(matchMedia(query), "change", call);
  }
}
