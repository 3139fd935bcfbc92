// The base of the three live views: status and silence of the kernel, presence, requests.

import { Disposables, el, ignore_disabled_clicks, set_text } from "./dom";
import type { Model, View } from "./model";
import { hide_still } from "./notebook";
import { report_visibility } from "./presence";
import { Requests } from "./requests";

const SILENT_S = 8; // the kernel sends a visible view a frame at least every 2 s

interface Status {
  status: string;
  why: string;
}

export abstract class WidgetView {
  protected readonly disposables = new Disposables();
  protected readonly requests: Requests;
  protected readonly name = el("strong", { class: "px-name" });
  protected readonly pill = el("span", { class: "px-pill", role: "status" });
  protected readonly why = el("div", { class: "px-why", hidden: true, role: "alert" });
  protected is_seen = false;
  private came_ms = performance.now();

  constructor(
    protected readonly model: Model,
    protected readonly root: HTMLElement,
    style: string,
  ) {
    root.classList.add("phalanx", style);
    hide_still(model, root, this.disposables);
    // Keep JupyterLab's cell shortcuts off keys typed here.
    root.setAttribute("data-lm-suppress-shortcuts", "true");
    ignore_disabled_clicks(root, this.disposables);
    this.requests = new Requests(model, this.disposables);
  }

  /** Redraw from the newest frame. */
  protected abstract update(): void;

  /** Keep the view up to date from now on; call `on_seen` when it becomes visible. */
  protected watch(on_seen: () => void = () => undefined): void {
    this.disposables.every(1, () => this.is_seen && this.update());
    report_visibility(this.model, this.root, this.disposables, (is_seen) => {
      this.is_seen = is_seen;
      this.note_frame();
      if (is_seen) on_seen();
      this.update();
    });
  }

  /** Note that the kernel has sent a frame. */
  protected note_frame(): void {
    this.came_ms = performance.now();
  }

  protected get since_s(): number {
    return (performance.now() - this.came_ms) / 1000;
  }

  /** Show whether the ranks answer, and why not; return whether they do. */
  protected show_status(frame: Status, said = "live", error = ""): boolean {
    const is_quiet = this.is_seen && this.since_s > SILENT_S;
    const is_live = frame.status === "live" && !is_quiet;
    set_text(this.pill, is_live ? said : frame.status === "gone" ? "gone" : "no answer");
    this.root.classList.toggle("px-grey", !is_live);
    const silence = `no word from the kernel for ${Math.floor(this.since_s)} s: it is busy, restarted or gone`;
    const why = is_live ? error : frame.why || silence;
    this.why.hidden = why === "";
    set_text(this.why, why);
    return is_live;
  }

  protected on(name: string, handle: () => void): void {
    this.model.on(name, handle);
    this.disposables.add(() => this.model.off(name, handle));
  }

  close(): void {
    this.disposables.run();
    this.root.replaceChildren();
  }
}

/** Return the module that anywidget expects. */
export function module_of(make: new (model: Model, root: HTMLElement) => WidgetView): {
  render: (view: View) => () => void;
} {
  return {
    render({ model, el: root }) {
      const view = new make(model, root);
      return () => view.close();
    },
  };
}
