// One panel of a sweep on log axes: uPlot, with limits, algorithm changes and whiskers drawn on top.

import { Component, createRef, type VNode } from "preact";
import uPlot from "uplot";

import { colours_of, type Colours } from "../shared/theme";
import { size } from "../shared/words";
import { decades, panel, short, ticks, type Column, type Frame, type Kind, type Panel } from "./state";

const HEIGHT = 260;
const LEAST_WIDTH = 260;
const TITLES: Record<Kind, string> = { bandwidth: "bus bandwidth, GB/s", time: "time, µs (whisker: p99)" };
// A change of one of these colours needs a new plot.
const COLOURS = ["ink", "soft", "edge", "input", "dead", ...[1, 2, 3, 4, 5, 6].map((i) => `series-${i}`)];

const N_EARLIER = 5; // colours after the first, in turn
const OWN = "series-1";
const CHANGE_DASH = [1, 4];

interface Props {
  kind: Kind;
  frame: Frame;
  on_point: (nbytes: number | null) => void; // gets the size under the pointer
}

export class Chart extends Component<Props> {
  private readonly place = createRef<HTMLDivElement>();
  private plot: uPlot | null = null;
  private shown: Panel = { sizes: [], now: [], fit: [], earlier: [] }; // made from the frame
  private shape = "";
  private colours: Colours = () => "";
  private watch: ResizeObserver | null = null;

  override render({ kind }: Props): VNode {
    return (
      <figure class="px-chart">
        <figcaption class="px-soft">{TITLES[kind]}</figcaption>
        <div ref={this.place} />
      </figure>
    );
  }

  override componentDidMount(): void {
    this.watch = new ResizeObserver(() => {
      this.plot?.setSize({ width: this.width, height: HEIGHT });
      this.draw(); // colours can be read only when the element is on a page
    });
    this.watch.observe(this.element);
    this.draw();
  }

  override componentDidUpdate({ frame }: Props): void {
    if (frame !== this.props.frame) this.draw();
  }

  override componentWillUnmount(): void {
    this.watch?.disconnect();
    this.plot?.destroy();
  }

  private get element(): HTMLElement {
    return this.base as HTMLElement;
  }

  private get width(): number {
    return Math.max(LEAST_WIDTH, this.element.clientWidth);
  }

  draw(): void {
    const { frame, kind } = this.props;
    this.colours = colours_of(this.element);
    this.shown = panel(kind, frame);
    const lines = this.lines(frame);
    const series = [{}, ...lines.map(([its]) => its)];
    const data: uPlot.AlignedData = [this.shown.sizes, ...lines.map(([, column]) => column)];
    // A change of the series or colours needs a new plot.
    const shape = JSON.stringify([series, COLOURS.map(this.colours)]);
    if (!this.plot || shape !== this.shape) {
      this.plot?.destroy();
      this.shape = shape;
      this.plot = new uPlot(this.options(series), data, this.place.current as HTMLElement);
    } else {
      this.plot.setData(data);
    }
  }

  /** Return the lines with their columns, in the order of drawing. */
  private lines(frame: Frame): [uPlot.Series, Column][] {
    const { now, fit, earlier } = this.shown;
    const own = { stroke: this.colours(OWN), spanGaps: true };
    const lines = earlier.map((column, i): [uPlot.Series, Column] => {
      const points = { show: true, size: 4 }; // a stopped sweep may have too few points for a line
      const stroke = this.colours(`series-${2 + (i % N_EARLIER)}`);
      return [{ label: frame.earlier[i]?.name ?? "", stroke, width: 1.2, alpha: 0.7, spanGaps: true, points }, column];
    });
    if (fit.some((value) => value !== null)) {
      lines.push([{ ...own, label: "the model that fits it", width: 1.2, dash: [4, 4], points: { show: false } }, fit]);
    }
    if (frame.run) {
      const points = { show: true, size: 7, fill: own.stroke };
      lines.push([{ ...own, label: frame.run.name, width: 2, points }, now]);
    }
    return lines;
  }

  private options(series: uPlot.Series[]): uPlot.Options {
    const ink = this.colours("soft");
    const grid = { stroke: this.colours("edge"), width: 1 };
    const axis = { stroke: ink, grid, ticks: grid, font: "11px system-ui" };
    return {
      width: this.width,
      height: HEIGHT,
      // Both panels have the same lines.
      legend: {
        show: this.props.kind === "bandwidth",
        live: false,
        markers: { dash: (u, i) => (u.series[i]?.dash ? "dashed" : "solid"), fill: () => "none" },
      },
      cursor: { drag: { x: false, y: false }, points: { size: 9 } },
      scales: {
        x: { time: false, distr: 3, log: 2, range: () => this.x_range() },
        y: { distr: 3, range: () => this.y_range() },
      },
      axes: [
        {
          ...axis,
          size: 34,
          splits: (_u, _i, low, high) => ticks(low, high, 4, Math.max(3, Math.floor(this.width / 75))),
          filter: (_u, splits) => splits,
          values: (_u, splits) => splits.map(size),
        },
        {
          ...axis,
          size: 56,
          splits: (_u, _i, low, high) => ticks(low, high, 10, 8),
          filter: (_u, splits) => splits,
          values: (_u, splits) => splits.map(short),
        },
      ],
      series,
      hooks: {
        draw: [(u) => this.draw_beside(u)],
        setCursor: [(u) => this.on_cursor(u)],
      },
    };
  }

  private x_range(): [number, number] {
    const { sizes } = this.shown;
    const low = sizes[0] ?? 8;
    const high = sizes[sizes.length - 1] ?? 1024;
    return low < high ? [low / 1.5, high * 1.5] : [low / 4, high * 4];
  }

  private y_range(): [number, number] {
    const { now, earlier } = this.shown;
    const limits = this.props.kind === "bandwidth" ? this.props.frame.limits.map((limit) => limit.gbs) : [];
    return decades([...now, ...earlier.flat(), ...limits, ...this.whiskers().map((one) => one.high)]);
  }

  /** Return the span from the median to the 99th percentile for each size. */
  private whiskers(): { nbytes: number; low: number; high: number }[] {
    if (this.props.kind === "bandwidth") return [];
    return (this.props.frame.run?.points ?? [])
      .filter((point) => point.nbytes > 0 && point.time_us > 0 && point.p99_us > point.time_us)
      .map((point) => ({ nbytes: point.nbytes, low: point.time_us, high: point.p99_us }));
  }

  /** Draw limits, algorithm changes, whiskers and wrong points. */
  private draw_beside(u: uPlot): void {
    const { frame } = this.props;
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio;
    const line = (x1: number, y1: number, x2: number, y2: number): void => {
      ctx.beginPath();
      ctx.moveTo(x1, y1);
      ctx.lineTo(x2, y2);
      ctx.stroke();
    };
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${11 * ratio}px system-ui`;
    ctx.textBaseline = "alphabetic";
    ctx.textAlign = "left";
    ctx.lineWidth = 1.4 * ratio;
    for (const limit of this.props.kind === "bandwidth" ? frame.limits : []) {
      const y = u.valToPos(limit.gbs, "y", true);
      ctx.strokeStyle = ctx.fillStyle = this.colours("input");
      ctx.setLineDash([7 * ratio, 4 * ratio]);
      line(bbox.left, y, bbox.left + bbox.width, y);
      const at = y - bbox.top < 18 * ratio ? y + 13 * ratio : y - 5 * ratio; // inside the panel
      ctx.fillText(`${limit.name} ${short(limit.gbs)} GB/s`, bbox.left + 8 * ratio, at);
    }
    frame.changes.forEach((change, i) => {
      const x = u.valToPos(Math.sqrt(change.below * change.above), "x", true);
      const is_left = x < bbox.left + bbox.width / 2;
      ctx.strokeStyle = this.colours(OWN);
      ctx.fillStyle = this.colours("soft");
      ctx.setLineDash(CHANGE_DASH.map((pixels) => pixels * ratio));
      line(x, bbox.top, x, bbox.top + bbox.height);
      ctx.textAlign = is_left ? "left" : "right";
      const y = bbox.top + bbox.height - (8 + 14 * (i % 3)) * ratio;
      ctx.fillText(`${change.before} → ${change.after}`, x + (is_left ? 4 : -4) * ratio, y);
    });
    ctx.setLineDash([]);
    ctx.strokeStyle = this.colours(OWN);
    ctx.globalAlpha = 0.55;
    for (const { nbytes, low, high } of this.whiskers()) {
      const x = u.valToPos(nbytes, "x", true);
      line(x, u.valToPos(low, "y", true), x, u.valToPos(high, "y", true));
    }
    ctx.globalAlpha = 1;
    ctx.textAlign = "center";
    ctx.fillStyle = this.colours("dead");
    ctx.font = `bold ${15 * ratio}px system-ui`;
    for (const point of frame.run?.points ?? []) {
      const value = this.props.kind === "bandwidth" ? point.busbw_gbs : point.time_us;
      if (!point.n_wrong || value <= 0) continue;
      ctx.fillText("✕", u.valToPos(point.nbytes, "x", true), u.valToPos(value, "y", true) - 8 * ratio);
    }
    ctx.restore();
  }

  private on_cursor(u: uPlot): void {
    const { idx } = u.cursor;
    this.props.on_point(idx === null || idx === undefined ? null : (u.data[0][idx] ?? null));
  }

  /** Mark a size, or none. */
  point_at(nbytes: number | null): void {
    if (!this.plot) return;
    if (nbytes === null) {
      this.plot.setCursor({ left: -10, top: -10 }, false);
      return;
    }
    const left = this.plot.valToPos(nbytes, "x");
    const at = this.props.frame.run?.points.find((point) => point.nbytes === nbytes);
    const value = at && (this.props.kind === "bandwidth" ? at.busbw_gbs : at.time_us);
    this.plot.setCursor({ left, top: value ? this.plot.valToPos(value, "y") : 10 }, false);
  }
}
