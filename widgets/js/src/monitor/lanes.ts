// Handles pointer and keyboard on the lanes: select, pan, zoom.

import { Disposables, el, set_attributes, set_text } from "../shared/dom";
import { colours_of } from "../shared/theme";
import { height_of, paint, rank_at } from "./paint";
import { cell_at, panned, span_at, zoomed, type Cell, type History, type Span, type Window } from "./state";
import { say_span } from "./words";

const NARROW_PX = 560;
const TAKEN_PX = 3; // how near a pointer must be to hit a thin span

export class Lanes {
  readonly element: HTMLElement;
  window: Window = { right: null, length: 10_000 };
  chosen = -1;
  private readonly canvas = el("canvas", {
    tabindex: 0,
    // Tells screen readers to pass keys on to this element.
    role: "application",
    "aria-label": "lanes of the ranks over time",
    "aria-description":
      "arrows move through time and between ranks, plus and minus zoom, N and P go to the next and " +
      "previous operation of the chosen rank, Enter shows its cell, space pauses, Home is now",
  });
  private readonly tip = el("div", { class: "px-tip", hidden: true, role: "tooltip" });
  private readonly said = el("div", { class: "px-unseen", "aria-live": "polite" });
  private pointed: { rank: number; span: Span | null; cell: Cell | null } | null = null;
  private is_due = false;
  private dragged: { x: number; is_moved: boolean } | null = null;

  constructor(
    private readonly history: History,
    private readonly root: HTMLElement,
    private readonly act: {
      choose: (rank: number) => void;
      jump: (cell: Cell | null) => void;
      moved: () => void;
      pause: () => void;
    },
    disposables: Disposables,
  ) {
    this.element = el("div", { class: "px-lanes" }, this.canvas, this.tip, this.said);
    disposables.on<PointerEvent>(this.canvas, "pointermove", (event) => this.on_move(event));
    disposables.on<PointerEvent>(this.canvas, "pointerdown", (event) => this.on_down(event));
    disposables.on<PointerEvent>(this.canvas, "pointerup", (event) => this.on_up(event));
    disposables.on(this.canvas, "pointerleave", () => this.point(null));
    disposables.on(this.canvas, "blur", () => this.point(null));
    disposables.on(this.canvas, "dblclick", () => this.act.jump(this.pointed?.cell ?? null));
    disposables.on<WheelEvent>(this.canvas, "wheel", (event) => this.on_wheel(event));
    disposables.on<KeyboardEvent>(this.canvas, "keydown", (event) => this.on_key(event));
    if (typeof ResizeObserver !== "undefined") {
      const observer = new ResizeObserver(() => {
        this.root.classList.toggle("px-narrow", this.root.clientWidth < NARROW_PX);
        this.draw();
      });
      observer.observe(this.element);
      disposables.add(() => observer.disconnect());
    }
  }

  private get now(): number {
    return this.history.newest?.now ?? 0;
  }

  private get right(): number {
    return this.window.right ?? this.now;
  }

  private get width(): number {
    return Math.max(1, this.element.clientWidth);
  }

  /** Draw once in the browser's next animation frame, however often this is called. */
  draw(): void {
    if (this.is_due) return;
    this.is_due = true;
    const paint_now = (): void => {
      this.is_due = false;
      this.paint();
    };
    if (typeof requestAnimationFrame === "undefined") paint_now();
    else requestAnimationFrame(paint_now);
  }

  private paint(): void {
    const ratio = typeof devicePixelRatio === "number" ? devicePixelRatio : 1;
    const height = height_of(this.history.lanes.length);
    const [w, h] = [Math.round(this.width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext("2d");
    if (!context) return;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const view = { left: this.right - this.window.length, right: this.right, now: this.now };
    paint(context, this.history, { ...view, width: this.width, chosen: this.chosen }, colours_of(this.root));
    if (this.pointed?.span) this.tell(this.pointed.span);
  }

  zoom(factor: number, share = this.kept): void {
    this.window = zoomed(this.window, factor, this.now, share);
    this.act.moved();
    this.draw();
  }

  pan(by_ms: number): void {
    this.window = panned(this.window, by_ms, this.now);
    this.act.moved();
    this.draw();
  }

  /** Follow the ranks, or stop at the current time. */
  follow(is_live: boolean): void {
    this.window = { length: this.window.length, right: is_live ? null : this.right };
    if (is_live) this.point(null);
    this.act.moved();
    this.draw();
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

  private find(event: MouseEvent): { rank: number; span: Span | null; cell: Cell | null } | null {
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
    const found = this.find(event);
    this.point(found);
    if (!found?.span) return;
    const place = this.element.getBoundingClientRect();
    this.put_tip(event.clientX - place.left, event.clientY - place.top + 14);
  }

  /** Put the tooltip on the side with more room. */
  private put_tip(x: number, y: number): void {
    const at = Math.max(0, Math.min(x, this.width));
    const is_right = at > this.width / 2;
    Object.assign(this.tip.style, {
      left: is_right ? "auto" : `${at + 12}px`,
      right: is_right ? `${this.width - at + 12}px` : "auto",
      top: `${y}px`,
    });
  }

  private on_down(event: PointerEvent): void {
    this.dragged = { x: event.clientX, is_moved: false };
  }

  private on_up(event: PointerEvent): void {
    const is_click = this.dragged !== null && !this.dragged.is_moved;
    this.dragged = null;
    const found = this.find(event);
    if (is_click && found) this.act.choose(found.rank);
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

  private point(found: typeof this.pointed): void {
    this.pointed = found;
    this.tip.hidden = !found?.span;
    set_attributes(this.canvas, { class: found?.span ? "px-pointed" : null });
    if (found?.span) this.tell(found.span);
  }

  private tell(span: Span): void {
    const number = this.pointed?.cell?.number ?? 0;
    const cell = number > 0 ? `cell [${number}]` : "the cell that runs";
    set_text(this.tip, say_span(span, this.now) + (number ? ` · ${cell}: double-click to see it` : ""));
  }

  private on_key(event: KeyboardEvent): void {
    const step = this.window.length / 8;
    const n = this.history.lanes.length;
    const keys: Record<string, () => void> = {
      ArrowLeft: () => this.pan(-step),
      ArrowRight: () => this.pan(step),
      ArrowUp: () => this.act.choose(Math.max(0, this.chosen - 1)),
      ArrowDown: () => this.act.choose(Math.min(n - 1, this.chosen + 1)),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      Home: () => this.follow(true),
      " ": () => this.act.pause(),
      n: () => this.step(1),
      p: () => this.step(-1),
      Escape: () => this.point(null),
      Enter: () => this.act.jump(this.pointed?.cell ?? null),
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
    this.point({ rank, span, cell: cell_at(lane, span.begun, this.now) });
    this.put_tip(this.share_of(span) * this.width, this.canvas.clientHeight);
    set_text(this.said, say_span(span, this.now));
  }
}
