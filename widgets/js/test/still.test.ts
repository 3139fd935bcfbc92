// The still picture beside a view: only it is hidden while the view exists, on every front end.
import { afterEach, expect, it } from "vitest";
import { still_rules } from "../src/shared/notebook";

const OURS = "0123456789abcdef0123456789abcdef";
const OTHER = "f".repeat(32);

afterEach(() => document.body.replaceChildren());

function page(html: string, still_id = OURS): HTMLStyleElement {
  document.body.innerHTML = html;
  const style = document.body.appendChild(document.createElement("style"));
  style.textContent = still_rules(still_id);
  return style;
}

function is_shown(selector: string): boolean {
  let element = document.querySelector(selector);
  expect(element).not.toBeNull();
  for (; element; element = element.parentElement) if (getComputedStyle(element).display === "none") return false;
  return true;
}

const svg = (id: string): string => `<svg data-px-still="${id}" xmlns="http://www.w3.org/2000/svg"></svg>`;
const image = (name: string, text: string): string =>
  `<img id="${name}" src="data:image/svg+xml,${encodeURIComponent(text)}">`;
const output = (html: string): string =>
  `<div class="jp-OutputArea-child"><div class="jp-OutputArea-prompt"></div>
   <div class="jp-OutputArea-output" data-mime-type="image/svg+xml">${html}</div></div>`;

it("is hidden with its output in JupyterLab, as long as the view is there", () => {
  const style = page(output(image("ours", svg(OURS))) + output(image("other", svg(OTHER))));
  expect([is_shown("#ours"), is_shown("#other")]).toEqual([false, true]);
  expect(getComputedStyle(document.querySelector(".jp-OutputArea-child") as Element).display).toBe("none");
  style.remove();
  expect([is_shown("#ours"), is_shown("#other")]).toEqual([true, true]);
});

it("is hidden where a front end has made it an element of the page", () => {
  page(`<div class="output_container"><div class="output">${svg(OURS)}</div></div>${svg(OTHER)}`);
  expect(is_shown(`[data-px-still="${OURS}"]`)).toBe(false);
  expect(is_shown(`[data-px-still="${OTHER}"]`)).toBe(true);
});

it("takes no other picture of an output around it along", () => {
  const inner = output(image("ours", svg(OURS))) + output(image("plot", "<svg></svg>"));
  page(`<div class="jp-OutputArea-child"><div class="jp-OutputArea-output"><div class="jp-OutputArea">${inner}</div></div></div>
    ${output(image("next", "<svg></svg>"))}`);
  expect(is_shown("#ours")).toBe(false);
  expect([is_shown("#plot"), is_shown("#next")]).toEqual([true, true]);
});

it("is never looked for by what is no number of ours", () => {
  expect([still_rules(""), still_rules('"] , * { } [x="')]).toEqual(["", ""]);
});
