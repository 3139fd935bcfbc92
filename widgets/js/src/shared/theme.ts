// Reads the page's colours for canvases, and watches for their change.

import type { Disposables } from "./dom";

/** A colour by its name in the stylesheets, without "--px-". */
export type Colours = (name: string) => string;

/** Return the current colours of an element: the theme may change at any time. */
export function colours_of(element: Element): Colours {
  const look = getComputedStyle(element);
  const known = new Map<string, string>();
  return (name) => {
    let colour = known.get(name);
    if (!colour) known.set(name, (colour = look.getPropertyValue(`--px-${name}`).trim() || "#888"));
    return colour;
  };
}

/** Call `call` when the theme changes, as canvases keep the colours they were drawn in. */
export function on_theme(disposables: Disposables, call: () => void): void {
  const pages = new MutationObserver(call);
  pages.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
  disposables.add(() => pages.disconnect());
  for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
    disposables.on(matchMedia(query), "change", call);
  }
}
