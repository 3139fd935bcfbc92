// The view of links: searched, a way to each rank, and measured on request: progress, stop, and the focus is kept.
import { beforeEach, describe, expect, it, vi } from "vitest";
import { h, render } from "preact";
import { Curves } from "../src/topology/links";
import type { Frame, World } from "../src/topology/state";
import { make_frame, make_rank, make_world } from "./support/fakes";
import { settle, TopologyPage } from "./support/pages";

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
    const root = document.createElement("div");
    render(h(Curves, { world: known, boxes, marked: -1, frame: seen }), root);
    render(h(Curves, { world: known, boxes, marked: 5, frame: seen }), root);
    expect(root.querySelectorAll(".px-marked.px-moving")).toHaveLength(63);
    expect(n_looks).toBeLessThan(10);
  });
  it("stay where they are under a pointer: nothing is laid out anew", () => {
    const page = new TopologyPage(world, "compact");
    page.put({ frame: frame });
    const look = vi.spyOn(Element.prototype, "getBoundingClientRect");
    page.tile(5).dispatchEvent(new Event("pointerenter"));
    page.tile(5).dispatchEvent(new Event("pointerleave"));
    expect(look).not.toHaveBeenCalled();
    look.mockRestore();
  });
});

describe("the table of links", () => {
  let page: TopologyPage;
  const title = (): string | null | undefined => page.root.querySelector(".px-details:not([hidden]) h3")?.textContent;
  const pair: World = { ...make_world(1, 2), arenas: [], tcp: [[0, 1]] };

  it("has the links of the ranks that are looked for, or that say it themselves", () => {
    const slow = { a: 0, b: 2, state: "slow" as const, words: "slow: 2 GB/s" };
    page = new TopologyPage({ ...make_world(2, 2), measured: [slow] }, "links");
    const ranks = (): unknown[] => page.links.map(([its]) => its);
    expect(ranks()).toEqual(["0 2", "0 1", "2 3"]);
    page.search("node1");
    expect(ranks()).toEqual(["0 2", "2 3"]);
    page.search("1");
    expect(ranks()).toEqual(["0 1"]);
    page.search("slow");
    expect(ranks()).toEqual(["0 2"]);
    page.search("2"); // not the 2 of 2 GB/s only
    expect(ranks()).toEqual(["0 2", "2 3"]);
    page.search("zzz");
    expect(ranks()).toEqual([]);
    page.search("");
    expect(ranks()).toHaveLength(3);
  });

  it("says what moves now", () => {
    page = new TopologyPage(pair, "links");
    page.put({ frame: make_frame(Array(2).fill(make_rank("busy")), { links: [[0, 1, 2e9]] }) });
    expect(page.links).toEqual([["0 1", "tcp", "", "rank 0 → rank 1: 2 GB/s; back: 0 B/s"]]);
    page.put({ world: make_world(1, 2) });
    page.put({ frame: make_frame(Array(2).fill(make_rank("busy")), { arena: [1e9, 2e9] }) });
    expect(page.links).toEqual([["0 1", "shared memory", "", "3 GB/s"]]);
  });

  it("leads to each rank with the keyboard, and back", () => {
    page = new TopologyPage(make_world(2, 2), "links");
    page.link("0 1", 0).focus();
    page.press(["ArrowDown", "ArrowRight", "Enter"]); // a browser makes a click of Enter
    const three = page.link("2 3", 3);
    expect(document.activeElement).toBe(three);
    three.click();
    expect(title()).toBe("rank 3 · idle");
    expect(three.getAttribute("aria-pressed")).toBe("true");
    page.button("Where is it?").focus();
    page.press(["Escape"]);
    expect(page.model.get("selected")).toBe(-1);
    expect(document.activeElement).toBe(three);
    page.press(["End"]);
    expect(document.activeElement).toBe(page.link("0 2", 2));
    page.press(["Home", "ArrowLeft", "ArrowLeft", "ArrowUp"]); // the edges
    expect(document.activeElement).toBe(page.link("0 1", 0));
    const stops = (): Element[] => [...page.root.querySelectorAll('.px-link-table [tabindex="0"]')];
    expect(stops()).toEqual([page.link("0 1", 0)]);
    page.search("3");
    expect(stops()).toEqual([page.link("2 3", 2)]);
  });

  it("leads to what was found with Enter", () => {
    page = new TopologyPage(make_world(1, 4), "links");
    page.search("3");
    page.press(["Enter"], page.find("input"));
    expect(title()).toBe("rank 3 · idle");
  });
});

const NASTY = "stopped <script>alert(1)</script>";
const FAR = "504 of 2016 links, about 24 s left";

describe("links that are measured", () => {
  let page: TopologyPage;
  beforeEach(() => (page = new TopologyPage(make_world(2, 2), "links")));
  const frame = (measuring: string, status: "live" | "gone" = "live"): void =>
    page.put({ frame: make_frame(Array(4).fill(make_rank("busy")), { measuring, status }) });
  const shown = (): string | null | undefined => page.root.querySelector(".px-measure .px-buttons")?.textContent;

  it("say how far they are, to a view that has not asked as well", () => {
    expect(page.button("Stop").hidden).toBe(true);
    frame(FAR);
    expect(shown()).toContain(FAR);
    expect(page.button("Stop").hidden).toBe(false);
    expect(page.button("Measure the links").disabled).toBe(true);
    frame("");
    expect(shown()).not.toContain("504");
    expect(page.button("Stop").hidden).toBe(true);
    expect(page.button("Measure the links").disabled).toBe(false);
  });

  it("are stopped when asked, and say so; the focus stays in reach", async () => {
    page.button("Measure the links").focus();
    page.button("Measure the links").click();
    const asked = page.model.sent[page.model.sent.length - 1];
    expect(asked).toMatchObject({ kind: "ask", action: "links" });
    expect(page.button("Measure the links").getAttribute("aria-disabled")).toBe("true");
    frame(FAR);
    page.button("Stop").focus();
    page.button("Stop").click();
    expect(page.model.sent[page.model.sent.length - 1]).toMatchObject({ kind: "ask", action: "stop_links" });
    await page.answer(true, "the measurement was asked to stop");
    frame("");
    expect(document.activeElement).toBe(page.button("Measure the links"));
    page.model.tell("msg:custom", { kind: "answer", id: asked?.["id"], ok: true, text: NASTY });
    await settle();
    expect(page.root.querySelector(".px-measured")?.textContent).toBe(NASTY);
    expect(page.root.querySelector("script")).toBeNull();
    expect(page.button("Measure the links").getAttribute("aria-disabled")).toBeNull();
    expect(page.button("Measure the links").disabled).toBe(false);
  });

  it("are not said to go on in a world that is gone", () => {
    frame(FAR);
    frame(FAR, "gone");
    expect(page.button("Stop").hidden).toBe(true);
    expect(shown()).not.toContain("504");
  });
});
