// One panel of the Bandwidth widget, on a fake plot that records its data.
import { describe, expect, it, vi } from "vitest";

import { make_chart } from "../src/bandwidth/chart";
import type { Frame, Kind } from "../src/bandwidth/state";
import { FakeContext, make_frame, make_point } from "./support/sweeps";

// jsdom has no canvas, and uPlot needs more of a browser when it is loaded. This fake has two pixels for each decade and each
// octave.
const plots: FakePlot[] = [];
class FakePlot {
  readonly bbox = { left: 0, top: 0, width: 500, height: 200 };
  readonly ctx = new FakeContext();
  constructor(readonly options: Options) {
    plots.push(this);
  }
  valToPos(value: number, axis: string): number {
    return axis === "x" ? 2 * Math.log2(value) : 2 * Math.log10(value);
  }
  setData(): void {}
  destroy(): void {}
}
interface Options {
  scales: Record<"x" | "y", { range(): [number, number] }>;
  hooks: { draw: ((plot: FakePlot) => void)[] };
  series: { label?: string; dash?: number[] }[];
  legend: { show: boolean };
}
vi.mock("uplot", () => ({
  default: function make(options: Options) {
    return new FakePlot(options);
  },
}));

vi.stubGlobal("devicePixelRatio", 1);
vi.stubGlobal(
  "ResizeObserver",
  class {
    observe(): void {}
    disconnect(): void {}
  },
);

describe("a panel", () => {
  const drawn = (kind: Kind, frame: Frame): FakePlot => {
    const chart = make_chart(kind, () => undefined);
    document.body.append(chart.element);
    chart.draw(frame);
    chart.element.remove();
    return plots[plots.length - 1] as FakePlot;
  };

  it("has a whisker up to the 99th percentile of each time, and room for it", () => {
    const points = [make_point(8, { time_us: 2, p99_us: 900 }), make_point(32, { time_us: 5, p99_us: 5 })];
    const frame = make_frame(0, { run: { name: "this", points }, fit: null, limits: [] });
    const plot = drawn("time", frame);
    expect(plot.options.scales.y.range()).toEqual([1, 1000]);
    plot.options.hooks.draw[0]?.(Object.assign(plot, { ctx: new FakeContext() }));
    const x = plot.valToPos(8, "x");
    expect(plot.ctx.lines).toEqual([[x, plot.valToPos(2, "y"), x, plot.valToPos(900, "y")]]);
    const other = drawn("bandwidth", frame);
    other.options.hooks.draw[0]?.(other);
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
    for (const axis of ["x", "y"] as const) plot.options.scales[axis].range();
    expect(n_read).toBe(1);
  });

  it("names its lines, in one legend for both panels", () => {
    const frame = make_frame(3, { earlier: [{ name: "<i>before</i>", points: [make_point(8)] }] });
    const named = (plot: FakePlot): unknown[] => plot.options.series.slice(1).map(({ label, dash }) => [label, !!dash]);
    const plot = drawn("bandwidth", frame);
    expect(named(plot)).toEqual([["<i>before</i>", false], ["the model that fits it", true], ["this", false]]);
    expect([plot.options.legend.show, drawn("time", frame).options.legend.show]).toEqual([true, false]);
    expect(named(drawn("bandwidth", make_frame(1)))).toEqual([["this", false]]); // one point has no model
    expect(named(drawn("bandwidth", make_frame(0, { run: null })))).toEqual([]);
  });

  it("is made anew in other colours", () => {
    const chart = make_chart("time", () => undefined);
    document.body.append(chart.element);
    chart.element.style.setProperty("--px-ink", "CanvasText"); // the same word in both schemes
    chart.draw(make_frame(3));
    const n_made = plots.length;
    chart.draw(make_frame(3));
    expect(plots.length).toBe(n_made);
    chart.element.style.setProperty("--px-series-1", "#6cbcf2");
    chart.draw(make_frame(3));
    expect(plots.length).toBe(n_made + 1);
    chart.element.remove();
  });
});
