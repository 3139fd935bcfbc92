// Handles pointer and keyboard on the lanes: select, pan, zoom.

import { createRef, type VNode } from "preact";

import { colours_of } from "../shared/theme";
import { height_of, Painter, rank_at } from "./paint";
import { cell_at, panned, span_at, zoomed, type Cell, type History, type Span, type Window } from "./state";
import { say_span } from "./words";

const TAKEN_PX = 3; // how near a pointer must be to hit a thin span

interface Pointed {
  rank: number;
  span: Span | null;
  cell: Cell | null;
}

export class Lanes {
  window: Window = { right: null, length: 10_000 };
  chosen = -1;
  private readonly place = createRef<HTMLCanvasElement>();
  private pointed: Pointed | null = null;
  private tip: [x: number, y: number] = [0, 0];
  private said = "";
  private is_due = false;
  private dragged: { x: number; is_moved: boolean } | null = null;

  constructor(
    private readonly history: History,
    private readonly update: () => void,
    private readonly jump: (cell: Cell | null) => void,
  ) {}

  view(): VNode {
    const { pointed } = this;
    const jump = (): void => this.jump(pointed?.cell ?? null);
    return (
      <div class="px-lanes">
        <canvas
          ref={this.place}
          tabIndex={0}
          role="application" // tells screen readers to pass keys on to this element
          aria-label="lanes of the ranks over time"
          aria-description={
            "arrows move through time and between ranks, plus and minus zoom, N and P go to the next and " +
            "previous operation of the chosen rank, Enter shows its cell, space pauses, Home is now"
          }
          class={pointed?.span ? "px-pointed" : ""}
          onPointerMove={(event) => this.on_move(event)}
          onPointerDown={(event) => (this.dragged = { x: event.clientX, is_moved: false })}
          onPointerUp={(event) => this.on_up(event)}
          onPointerLeave={() => this.point(null)}
          onBlur={() => this.point(null)}
          onDblClick={jump}
          onWheel={(event) => this.on_wheel(event)}
          onKeyDown={(event) => this.on_key(event)}
        />
        <div class="px-tip" role="tooltip" hidden={!pointed?.span} style={this.tip_place()}>
          {pointed?.span && this.tell(pointed.span, pointed.cell)}
        </div>
        <div class="px-unseen" aria-live="polite">
          {this.said}
        </div>
      </div>
    );
  }

  get canvas(): HTMLCanvasElement {
    return this.place.current as HTMLCanvasElement;
  }

  private get now(): number {
    return this.history.newest?.now ?? 0;
  }

  private get right(): number {
    return this.window.right ?? this.now;
  }

  private get width(): number {
    return Math.max(1, this.canvas.clientWidth);
  }

  /** Draw once in the browser's next animation frame, however often this is called. */
  draw(): void {
    if (this.is_due) return;
    this.is_due = true;
    requestAnimationFrame(() => {
      this.is_due = false;
      this.paint();
    });
  }

  private paint(): void {
    const { canvas } = this;
    if (!canvas) return; // closed meanwhile
    const ratio = devicePixelRatio;
    const height = height_of(this.history.lanes.length);
    const [w, h] = [Math.round(this.width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    if (!context) return;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const { history, right, now, width, chosen } = this;
    const view = { left: right - this.window.length, right, now, width, chosen };
    new Painter(context, history, view, colours_of(canvas)).paint();
  }

  /** Choose a rank, or none if it was chosen. */
  choose(rank: number): void {
    this.chosen = rank === this.chosen ? -1 : rank;
    this.update();
  }

  pause(): void {
    this.follow(this.window.right !== null);
  }

  zoom(factor: number, share = this.kept): void {
    this.window = zoomed(this.window, factor, this.now, share);
    this.update();
  }

  pan(by_ms: number): void {
    this.window = panned(this.window, by_ms, this.now);
    this.update();
  }

  /** Follow the ranks, or stop at the current time. */
  follow(is_live: boolean): void {
    this.window = { length: this.window.length, right: is_live ? null : this.right };
    if (is_live) this.pointed = null;
    this.update();
  }

  /** Return the start of a span in the window, from 0 (left) to 1 (right). */
  private share_of(span: Span): number {
    return (span.begun - this.right) / this.window.length + 1;
  }

  /** Fixed point of a zoom with keys or buttons: the described span, else the right end. */
  private get kept(): number {
    const share = this.pointed?.span ? this.share_of(this.pointed.span) : 1;
    return share >= 0 && share <= 1 ? share : 1;
  }

  private time_at(x: number): number {
    return this.right - this.window.length * (1 - x / this.width);
  }

  private find(event: MouseEvent): Pointed | null {
    const place = this.canvas.getBoundingClientRect();
    const rank = rank_at(event.clientY - place.top, this.history.lanes.length);
    const lane = this.history.lanes[rank];
    if (!lane) return null;
    const time = this.time_at(event.clientX - place.left);
    const slack = (TAKEN_PX * this.window.length) / this.width;
    return { rank, span: span_at(lane, time, this.now, slack), cell: cell_at(lane, time, this.now) };
  }

  private on_move(event: PointerEvent): void {
    if (this.dragged && event.buttons) {
      const by = event.clientX - this.dragged.x;
      if (!this.dragged.is_moved && Math.abs(by) < TAKEN_PX) return;
      this.dragged = { x: event.clientX, is_moved: true };
      this.pan((-by * this.window.length) / this.width);
      return;
    }
    const place = this.canvas.getBoundingClientRect();
    this.point(this.find(event), event.clientX - place.left, event.clientY - place.top + 14);
  }

  /** Return the tooltip's place, on the side with more room. */
  private tip_place(): Record<string, string> {
    const [x, top] = this.tip;
    const width = this.canvas?.clientWidth ?? 0;
    const at = Math.max(0, Math.min(x, width));
    const side = at > width / 2 ? { right: `${width - at + 12}px` } : { left: `${at + 12}px` };
    return { ...side, top: `${top}px` };
  }

  private on_up(event: PointerEvent): void {
    const is_click = this.dragged !== null && !this.dragged.is_moved;
    this.dragged = null;
    const found = this.find(event);
    if (is_click && found) this.choose(found.rank);
  }

  private on_wheel(event: WheelEvent): void {
    // Scrolling the page must not zoom the lanes under the pointer.
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const place = this.canvas.getBoundingClientRect();
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8, (event.clientX - place.left) / this.width);
  }

  /** Forget selection, pointer and window, as the lanes of other ranks come. */
  forget(): void {
    this.chosen = -1;
    this.follow(true);
  }

  private point(pointed: Pointed | null, ...tip: Lanes["tip"] | []): void {
    if (!pointed && !this.pointed) return;
    this.pointed = pointed;
    if (tip.length) this.tip = tip;
    this.update();
  }

  private tell(span: Span, cell: Cell | null): string {
    const number = cell?.number ?? 0;
    const name = number > 0 ? `cell [${number}]` : "the cell that runs";
    return say_span(span, this.now) + (number ? ` · ${name}: double-click to see it` : "");
  }

  private on_key(event: KeyboardEvent): void {
    const step = this.window.length / 8;
    const n = this.history.lanes.length;
    const keys: Record<string, () => void> = {
      ArrowLeft: () => this.pan(-step),
      ArrowRight: () => this.pan(step),
      ArrowUp: () => this.choose(Math.max(0, this.chosen - 1)),
      ArrowDown: () => this.choose(Math.min(n - 1, this.chosen + 1)),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      Home: () => this.follow(true),
      " ": () => this.pause(),
      n: () => this.step(1),
      p: () => this.step(-1),
      Escape: () => this.point(null),
      Enter: () => this.jump(this.pointed?.cell ?? null),
    };
    const key = keys[event.key] ?? keys[event.key.toLowerCase()];
    if (!key || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    key();
  }

  /** Go to the operation after or before the described one. */
  private step(by: 1 | -1): void {
    const rank = Math.max(0, this.chosen);
    const lane = this.history.lanes[rank];
    if (!lane?.spans.length) return;
    const known = this.pointed?.rank === rank && this.pointed.span;
    const at = known ? lane.spans.findIndex((span) => span.begun === known.begun && span.number === known.number) : -1;
    const to = at < 0 ? lane.spans.length - 1 : Math.min(lane.spans.length - 1, Math.max(0, at + by));
    const span = lane.spans[to] as Span;
    this.follow(false);
    if (span.begun < this.right - this.window.length || span.begun > this.right) {
      this.pan(span.begun + this.window.length / 2 - this.right);
    }
    this.said = say_span(span, this.now);
    const pointed = { rank, span, cell: cell_at(lane, span.begun, this.now) };
    this.point(pointed, this.share_of(span) * this.width, this.canvas.clientHeight);
  }
}
