// The base of the three live views: frames, status and silence of the kernel, presence, requests.

import { render, type ComponentChildren, type VNode } from "preact";

import { Disposables } from "./dom";
import { decode, type Model, type Status, type View } from "./model";
import { still_rules } from "./notebook";
import { report_visibility } from "./presence";
import { Requests } from "./requests";

const SILENT_S = 8; // the kernel sends a visible view a frame at least every 2 s

/** A view shows what `view` returns for the newest frame and for what the reader has chosen; both end in `update`. */
export abstract class WidgetView<Frame extends Status> {
  protected readonly disposables = new Disposables();
  protected readonly requests: Requests;
  protected frame: Frame | null = null;
  private is_seen = false;
  private is_closed = false;
  private is_drawing = false;
  private is_due = false;
  private came_ms = performance.now();

  constructor(
    protected readonly model: Model,
    protected readonly root: HTMLElement,
  ) {
    this.requests = new Requests(model, this.disposables);
  }

  protected abstract view(): ComponentChildren;

  /** Take a frame, which may be the one before again. */
  protected take(frame: Frame): void {
    this.frame = frame;
  }

  /** Note that the view has become visible. */
  protected on_seen(): void {}

  /** Show frames from now on. */
  open(style: string): void {
    this.root.classList.add("phalanx", style);
    // Keep JupyterLab's cell shortcuts off keys typed here.
    this.root.setAttribute("data-lm-suppress-shortcuts", "true");
    this.on("change:still_id", () => this.update());
    this.on("change:frame", () => this.on_frame());
    this.on_frame();
    this.disposables.every(1, () => this.is_seen && this.update());
    report_visibility(this.model, this.root, this.disposables, (is_seen) => {
      this.is_seen = is_seen;
      this.came_ms = performance.now();
      if (is_seen) this.on_seen();
      this.update();
    });
  }

  protected take_newest(): boolean {
    const frame = decode<Frame>(this.model.get("frame") as DataView);
    if (frame) this.take(frame);
    return frame !== null;
  }

  private on_frame(): void {
    if (this.take_newest()) this.came_ms = performance.now();
    this.update();
  }

  protected update(): void {
    this.is_due = !this.is_closed; // an answer may come late
    if (this.is_drawing) return; // what is drawn takes the focus from a button, or gives it
    this.is_drawing = true;
    try {
      while (this.is_due) this.draw_once();
    } finally {
      this.is_drawing = false;
    }
  }

  private draw_once(): void {
    this.is_due = false;
    this.root.classList.toggle("px-grey", this.frame !== null && !this.is_live);
    render([<style>{still_rules(String(this.model.get("still_id") ?? ""))}</style>, this.view()], this.root);
  }

  protected get since_s(): number {
    return (performance.now() - this.came_ms) / 1000;
  }

  /** Whether the ranks answer. */
  protected get is_live(): boolean {
    return this.frame?.status === "live" && !(this.is_seen && this.since_s > SILENT_S);
  }

  /** Return the line on top, which names the view and says how it stands, and why the ranks do not answer, or `error`. */
  protected top(name: string, head: string, tools: ComponentChildren, said = "live", error = ""): VNode {
    const { frame, is_live } = this;
    const silence = `no word from the kernel for ${Math.floor(this.since_s)} s: it is busy, restarted or gone`;
    const why = !frame ? "" : is_live ? error : frame.why || silence;
    return (
      <>
        <header class="px-bar">
          <strong class="px-name">{name}</strong>
          {head && <span class="px-soft">{head}</span>}
          <span class="px-pill" role="status" data-state={is_live ? said : undefined}>
            {!frame ? "" : is_live ? said : frame.status === "gone" ? "gone" : "no answer"}
          </span>
          {tools}
        </header>
        <div class="px-why" role="alert" hidden={!why}>
          {why}
        </div>
      </>
    );
  }

  protected on(name: string, handle: () => void): void {
    this.model.on(name, handle);
    this.disposables.add(() => this.model.off(name, handle));
  }

  close(): void {
    this.is_closed = true;
    this.disposables.run();
    render(null, this.root);
  }
}

/** Return the module that anywidget expects. */
export function module_of(
  make: new (model: Model, root: HTMLElement) => Pick<WidgetView<Status>, "open" | "close">,
  style: string,
): { render: (view: View) => () => void } {
  return {
    render({ model, el: root }) {
      const view = new make(model, root);
      view.open(style);
      return () => view.close();
    },
  };
}
