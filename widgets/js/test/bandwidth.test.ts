// The Bandwidth widget with a fake kernel; charts are checked by the data they get.
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import bandwidth from "../src/bandwidth";
import {
  decades, panel, say_point, short, ticks, type Frame,
} from "../src/bandwidth/state";
import { Page } from "./support/pages";
import { FakePlot, make_frame, make_point } from "./support/sweeps";

vi.mock("uplot", async () => ({ default: (await import("./support/sweeps")).FakePlot }));

function last<T>(all: T[] | undefined): T | undefined {
  return all?.[all.length - 1];
}

describe("what a chart needs", () => {
  it("brings sweep, model and earlier runs onto common sizes", () => {
    const earlier = [{ name: "before", points: [make_point(100)] }];
    const { sizes, now, fit, earlier: old } = panel("time", make_frame(3, { earlier }));
    expect(sizes).toEqual([...sizes].sort((a, b) => a - b));
    expect(new Set(sizes).size).toBe(sizes.length);
    for (const column of [now, fit, ...old]) expect(column.length).toBe(sizes.length);
    expect(now.filter((v) => v !== null)).toEqual([8, 32, 128].map((n) => make_point(n).time_us));
    expect(old[0]?.filter((v) => v !== null).length).toBe(1);
    expect(fit[sizes.indexOf(8)]).toBeCloseTo(3.001);
  });

  it("has no place for nothing on a log axis", () => {
    const run = { name: "alone", points: [make_point(8, { busbw_gbs: 0 }), make_point(0)] };
    const { sizes, now } = panel("bandwidth", make_frame(0, { run, fit: [] }));
    expect(sizes).toEqual([8]);
    expect(now).toEqual([null]);
  });

  it("chooses axes", () => {
    expect(decades([0.02, null, 30])).toEqual([0.01, 100]);
    expect(decades([])).toEqual([0.1, 10]);
    expect(decades([10])).toEqual([10, 100]);
    expect(ticks(8, 1 << 20, 4, 4).length).toBeLessThanOrEqual(4);
    expect(ticks(0.01, 100, 10, 9)).toHaveLength(5);
    expect(short(0.00001234)).toBe("1e-5");
    expect(short(12.345)).toBe("12.3");
  });

  it("says a point in words, and what is wrong loudly", () => {
    expect(say_point(make_point(1536))).toBe("1.5 KiB: 0.722 GB/s, 3.19 µs (p99 6.38 µs), staged, arena");
    expect(say_point(make_point(8, { n_wrong: 2 }))).toContain("2 WRONG elements");
  });
});

describe("the widget", () => {
  let page: Page;
  const show = (frame: Frame): void => page.put({ frame });

  beforeEach(() => {
    vi.useFakeTimers();
    page = new Page(bandwidth);
  });
  afterEach(() => vi.useRealTimers());

  it("says how to get a measurement where there is none", () => {
    expect(page.root.textContent).toContain("nothing is measured yet: choose an operation and press Run");
    show(make_frame(0, { state: "none", run: null, limits: [], fit: [], words: [], progress: "" }));
    expect(page.root.textContent).toContain("nothing is measured yet");
    expect(page.button("Run").disabled).toBe(false);
    expect(page.button("Stop").disabled).toBe(true);
    expect(page.button("CSV").disabled).toBe(true);
  });

  it("shows points as they come, and how far it is", () => {
    for (const n of [1, 2, 5]) {
      show(make_frame(n));
      for (const kind of ["bandwidth", "time"] as const) {
        expect(last(FakePlot.of(kind).data)?.filter((value) => value !== null).length).toBe(n);
      }
      const bar = page.find("[role=progressbar]");
      expect(bar.getAttribute("aria-valuenow")).toBe(String(n));
      expect(bar.getAttribute("aria-valuetext")).toBe(`${n} of 8 sizes, about 4 s left`);
    }
    expect(page.find<HTMLElement>(".px-fill").style.width).toBe("62.5%");
    expect(page.button("Run").disabled).toBe(true);
  });

  it("asks for what the form says, and stops it", async () => {
    show(make_frame(8, { state: "done" }));
    page.type("[aria-label=operation]", "all_max");
    page.type('[aria-label="last size"]', "64K");
    page.find<HTMLFormElement>("form").requestSubmit();
    expect(last(page.asked)).toMatchObject({ action: "run", op: "all_max", begin: "8", end: "64K", factor: 4, iters: 20 });
    expect(page.button("Starting…").disabled).toBe(true);
    await page.answer(true, "measuring");
    show(make_frame(1, { asked: { ...make_frame(0).asked, op: "all_max", end: "64K" } }));
    page.button("Stop").click();
    expect(last(page.asked)).toMatchObject({ action: "stop" });
    expect(page.button("Stopping…").disabled).toBe(true);
  });

  it("keeps what is typed while frames come", () => {
    show(make_frame(8, { state: "done" }));
    page.type('[aria-label="first size"]', "1K");
    show(make_frame(8, { state: "done" }));
    expect(page.find<HTMLInputElement>('[aria-label="first size"]').value).toBe("1K");
  });

  it("shows a refusal, as text", async () => {
    show(make_frame(8, { state: "done" }));
    page.find<HTMLFormElement>("form").requestSubmit();
    await page.answer(false, "<b>1 EiB</b> on 4 ranks needs 3 EiB of memory per rank");
    expect(page.text("[role=alert]")).toContain("<b>1 EiB</b> on 4 ranks");
    expect(page.root.querySelector("b")).toBeNull();
  });

  it("goes from size to size with the arrow keys, in words", () => {
    show(make_frame(3));
    const press = (key: string): void => page.press([key], page.find(".px-stage"));
    press("ArrowRight");
    expect(FakePlot.of("bandwidth").left).toBe(2 * Math.log2(8));
    press("End");
    expect(FakePlot.of("time").left).toBe(2 * Math.log2(128));
    expect(page.text(".px-said")).toContain("128 B: ");
    press("ArrowLeft");
    expect(page.text(".px-said")).toContain("32 B: ");
    FakePlot.of("time").hook("setCursor", { cursor: { idx: 0 } });
    expect(page.text(".px-said")).toContain("8 B: ");
  });

  it("draws anew when the reader takes another scheme", () => {
    show(make_frame(3));
    const { n_drawn } = FakePlot.of("time");
    matchMedia("(prefers-color-scheme: dark)").dispatchEvent(new Event("change"));
    expect(FakePlot.of("time").n_drawn).toBe(n_drawn + 1);
    page.close();
    matchMedia("(prefers-color-scheme: dark)").dispatchEvent(new Event("change"));
    expect(FakePlot.of("time").n_drawn).toBe(n_drawn + 1);
  });
});
