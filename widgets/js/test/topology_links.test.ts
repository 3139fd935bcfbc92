// The view of links: searched, and a way to each rank.
import { afterEach, describe, expect, it, vi } from "vitest";
import { svg } from "../src/shared/dom";
import { draw_curves, measured_by_pair } from "../src/topology/links";
import { numbered, stretches } from "../src/topology/matrix";
import { moves_alike, type Frame, type World } from "../src/topology/state";
import { make_frame, make_rank, make_world, packed } from "./support/fakes";
import { Page } from "./support/topology_page";

describe("numbers beside the matrix", () => {
  it("have room, and those that are wanted come first", () => {
    expect(numbered(5, 1, [])).toEqual([0, 1, 2, 3, 4]);
    expect(numbered(8, 3, [])).toEqual([0, 3, 6]);
    expect(numbered(8, 3, [4, 5])).toEqual([0, 4]);
    expect(numbered(0, 3, [])).toEqual([]);
  });
  it("stand together where they are neighbours", () => {
    expect(stretches([0, 1, 2, 5, 7, 8])).toEqual([
      [0, 3],
      [5, 1],
      [7, 2],
    ]);
    expect(stretches([])).toEqual([]);
  });
});

describe("64 ranks that all send to all", () => {
  const pairs = Array.from({ length: 64 }, (_, a) => Array.from({ length: a }, (__, b): [number, number] => [b, a])).flat();
  const world: World = { ...make_world(1, 64), arenas: [], tcp: pairs };
  const links = pairs.map(([a, b], at): Frame["links"][number] => [a, b, 1e6 + at]);
  const frame = make_frame(Array(64).fill(make_rank("busy")), { links });
  const boxes = new Map(world.home.map((_, rank) => [rank, { x: 10 * rank, y: 0, w: 8, h: 8 }]));

  it("are drawn with a few looks at what moves and what was measured, not some for each link", () => {
    let n_looks = 0;
    const watched = <T extends object, K extends keyof T>(record: T, name: K): T =>
      Object.defineProperty({ ...record }, name, { get: () => (n_looks++, record[name]) });
    const seen = watched(frame, "links");
    const known = watched({ ...world, measured: [] }, "measured");
    const overlay = svg("svg");
    draw_curves(overlay, known, boxes, -1, seen);
    draw_curves(overlay, known, boxes, 5, seen);
    expect(overlay.querySelectorAll(".px-marked.px-moving")).toHaveLength(63);
    expect(n_looks).toBeLessThan(10);
    expect(measured_by_pair(known)).toBe(measured_by_pair(known));
  });
  it("keep the marks of what goes on in the matrix", () => {
    const page = new Page(world, "links");
    const marks = (): Element[] => [...page.root.querySelectorAll(".px-flows circle")];
    page.model.set("frame", packed({ ...frame, links: links.slice(0, 3) }));
    const before = marks();
    page.model.set("frame", packed({ ...frame, links: [links[0], [5, 9, 7e9]] }));
    expect(marks()).toEqual(before.slice(0, 2));
    expect(marks()[1]?.getAttribute("cx")).toBe(String(26 + 9.5 * 8 - 0.5));
    expect(marks()[1]?.getAttribute("cy")).toBe(String(26 + 5.5 * 8 - 0.5));
    page.model.set("frame", packed({ ...frame, links: [] }));
    expect(marks()).toEqual([]);
    page.close();
    document.body.replaceChildren();
  });
  it("are drawn again only where something has changed", () => {
    const copy = { ...frame, links: links.map((link): Frame["links"][number] => [...link]) };
    expect(moves_alike(copy, frame)).toBe(true);
    expect(moves_alike(frame, null)).toBe(false);
    copy.links[7] = [0, 1, 5];
    expect(moves_alike(copy, frame)).toBe(false);
    expect(moves_alike({ ...frame, links: [] }, frame)).toBe(false);
  });
  it("stay where they are under a pointer: nothing is laid out anew", () => {
    const page = new Page(world, "compact");
    page.model.set("frame", packed(frame));
    const look = vi.spyOn(Element.prototype, "getBoundingClientRect");
    page.tile(5).dispatchEvent(new Event("pointerenter"));
    page.tile(5).dispatchEvent(new Event("pointerleave"));
    expect(look).not.toHaveBeenCalled();
    look.mockRestore();
    page.close();
    document.body.replaceChildren();
  });
});

describe("the links of ranks", () => {
  let page: Page;
  afterEach(() => {
    page.close();
    document.body.replaceChildren();
  });
  const veil = (): string => page.root.querySelector(".px-veil")?.getAttribute("d") ?? "";
  const looks = (): (string | null)[] =>
    [...page.root.querySelectorAll(".px-matrix text[text-anchor=end]")].map((its) => its.getAttribute("class"));
  const title = (): string | null | undefined => page.root.querySelector(".px-details:not([hidden]) h3")?.textContent;

  it("that are looked for stand out from the others", () => {
    page = new Page(make_world(2, 2), "links");
    expect(veil()).toBe("");
    page.search("node1");
    // Fields between the two others only: 0-1 with 0-1, two by two fields of 28 pixels.
    expect(veil()).toBe("M26 26h55v55h-55z");
    expect(looks()).toEqual(["px-elsewhere", "px-elsewhere", "", ""]);
    page.search("rank 1 ");
    expect(veil().match(/M/g)).toHaveLength(4); // around the row and the column of rank 1
    page.search("");
    expect(veil()).toBe("");
    expect(looks()).toEqual(["", "", "", ""]);
  });

  it("have their numbers and the veil also where nobody was found before they are looked at", () => {
    page = new Page(make_world(1, 4), "tiles");
    page.search("zzz");
    page.button("Links").click();
    expect(looks()).toEqual(Array(4).fill("px-elsewhere"));
    expect(veil()).toBe("M26 26h111v111h-111z");
  });

  it("say under a pointer that rests what moves now, and to who hears them when it ends", () => {
    const world: World = { ...make_world(1, 2), arenas: [], tcp: [[0, 1]] };
    page = new Page(world, "links");
    const move = (bytes: number): void =>
      page.model.set("frame", packed(make_frame(Array(2).fill(make_rank("busy")), { links: bytes ? [[0, 1, bytes]] : [] })));
    const tone = (): string | null | undefined => page.root.querySelector(".px-read")?.getAttribute("aria-live");
    page.matrix.getBoundingClientRect = () => new DOMRect(0, 0, Number(page.matrix.getAttribute("width")), 0);
    page.matrix.dispatchEvent(new MouseEvent("pointermove", { clientX: 26 + 1.5 * 28, clientY: 26 + 14 }));
    expect(page.read).toBe("rank 0 – rank 1: tcp");
    move(2e9);
    expect(page.read).toBe("rank 0 – rank 1: tcp; rank 0 → rank 1: 2 GB/s; back: 0 B/s");
    move(4e9);
    expect([page.read, tone()]).toEqual([expect.stringContaining(": 4 GB/s"), "off"]);
    move(0);
    expect(page.read).toBe("rank 0 – rank 1: tcp");
    page.matrix.dispatchEvent(new MouseEvent("pointerleave"));
    expect(page.read).toMatch(/^point at a field/);
    page.matrix.focus();
    page.press("ArrowRight");
    move(2e9);
    const heard = page.read;
    expect([heard, tone()]).toEqual([expect.stringContaining(": 2 GB/s"), "polite"]);
    move(4e9);
    expect(page.read).toBe(heard); // changes of numbers are not read aloud
    move(0);
    expect(page.read).toBe("rank 0 – rank 1: tcp");
  });

  it("lead to the rank of a row with Enter, and back", () => {
    page = new Page(make_world(1, 4), "links");
    page.matrix.focus();
    page.press("ArrowDown", "ArrowDown", "ArrowRight", "Enter");
    expect(page.model.get("selected")).toBe(2);
    expect(title()).toBe("rank 2 · idle");
    expect(looks()).toEqual(["", "", "px-chosen", ""]);
    page.button("Where is it?").focus();
    page.press("Escape");
    expect(page.model.get("selected")).toBe(-1);
    expect(document.activeElement).toBe(page.matrix);
    expect(page.read).toBe("rank 2 – rank 1: shared memory");
    page.press(" ");
    expect(title()).toBe("rank 2 · idle");
  });

  it("lead to the rank of a row, or of a number, with the pointer", () => {
    page = new Page(make_world(1, 4), "links");
    const click = (x: number, y: number): unknown =>
      page.matrix.dispatchEvent(new MouseEvent("click", { clientX: x, clientY: y }));
    // jsdom has no layout: the drawing is at the page's corner, with the size of its attributes.
    page.matrix.getBoundingClientRect = () => new DOMRect(0, 0, Number(page.matrix.getAttribute("width")), 0);
    click(26 + 3.5 * 28, 26 + 1.5 * 28);
    expect(title()).toBe("rank 1 · idle");
    click(26 + 3.5 * 28, 10);
    expect(title()).toBe("rank 3 · idle");
    click(10, 26 + 2.5 * 28);
    expect(title()).toBe("rank 2 · idle");
    click(10, 10); // the corner belongs to no pair
    click(1000, 1000);
    expect(title()).toBe("rank 2 · idle");
  });

  it("are chosen by what was found, and drawn as large as ever", () => {
    page = new Page(make_world(1, 4), "links");
    page.search("3");
    page.root.querySelector("input[type=search]")?.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
    expect(title()).toBe("rank 3 · idle");
    page.button("+").click();
    expect(looks()).toEqual(["px-elsewhere", "px-elsewhere", "px-elsewhere", "px-chosen"]);
    expect(page.root.querySelector("path.px-chosen")?.getAttribute("d")).toContain("M26 131"); // 3 rows of 35
  });
});
