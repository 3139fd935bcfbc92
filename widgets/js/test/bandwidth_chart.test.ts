// One panel of the Bandwidth widget, on a fake plot that records its data.
import { describe, expect, it, vi } from "vitest";

import { h, render } from "preact";

import { Chart } from "../src/bandwidth/chart";
import type { Frame, Kind } from "../src/bandwidth/state";
import { FakePlot, make_frame, make_point } from "./support/sweeps";

vi.mock("uplot", async () => ({ default: (await import("./support/sweeps")).FakePlot }));

describe("a panel", () => {
  const drawn = (kind: Kind, frame: Frame): FakePlot => {
    const root = document.createElement("div");
    render(h(Chart, { kind, frame, on_point: () => undefined }), root);
    return FakePlot.of(kind);
  };

  const range = (plot: FakePlot, axis: "x" | "y"): unknown => (plot.options.scales?.[axis]?.range as () => unknown)();

  it("has a whisker up to the 99th percentile of each time, and room for it", () => {
    const points = [make_point(8, { time_us: 2, p99_us: 900 }), make_point(32, { time_us: 5, p99_us: 5 })];
    const frame = make_frame(0, { run: { name: "this", points }, fit: [], limits: [] });
    const plot = drawn("time", frame);
    expect(range(plot, "y")).toEqual([1, 1000]);
    plot.hook("draw");
    const x = plot.valToPos(8, "x");
    expect(plot.ctx.lines).toEqual([[x, plot.valToPos(2, "y"), x, plot.valToPos(900, "y")]]);
    const other = drawn("bandwidth", frame);
    other.hook("draw");
    expect(other.ctx.lines).toEqual([]);
  });

  it("brings a frame's runs together once, however often its axes are asked for", () => {
    let n_read = 0;
    const frame = Object.defineProperty(make_frame(3), "earlier", {
      get: () => {
        n_read += 1;
        return [];
      },
    });
    const plot = drawn("bandwidth", frame);
    for (const axis of ["x", "y"] as const) range(plot, axis);
    expect(n_read).toBe(1);
  });

  it("names its lines, in one legend for both panels", () => {
    const frame = make_frame(3, { earlier: [{ name: "<i>before</i>", points: [make_point(8)] }] });
    const named = (plot: FakePlot): unknown[] => plot.options.series.slice(1).map(({ label, dash }) => [label, !!dash]);
    const plot = drawn("bandwidth", frame);
    expect(named(plot)).toEqual([["<i>before</i>", false], ["the model that fits it", true], ["this", false]]);
    expect([plot.options.legend?.show, drawn("time", frame).options.legend?.show]).toEqual([true, false]);
    expect(named(drawn("bandwidth", make_frame(1)))).toEqual([["this", false]]); // one point has no model
    expect(named(drawn("bandwidth", make_frame(0, { run: null })))).toEqual([]);
  });

  it("is made anew in other colours", () => {
    const root = document.body.appendChild(document.createElement("div"));
    const draw = (): void => render(h(Chart, { kind: "time", frame: make_frame(3), on_point: () => undefined }), root);
    root.style.setProperty("--px-ink", "CanvasText"); // the same word in both schemes
    draw();
    const n_made = FakePlot.all.length;
    draw();
    expect(FakePlot.all.length).toBe(n_made);
    root.style.setProperty("--px-series-1", "#6cbcf2");
    draw();
    expect(FakePlot.all.length).toBe(n_made + 1);
    root.remove();
  });
});
