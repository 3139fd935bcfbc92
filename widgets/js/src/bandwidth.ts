// The live Bandwidth widget: a sweep with its limits and earlier sweeps. It draws the frames of phalanx.widgets.Bandwidth, and
// turns clicks into requests.

import { Chart } from "./bandwidth/chart";
import { Form } from "./bandwidth/form";
import { is_running, NO_SWEEP, say_point, type Frame, type Kind } from "./bandwidth/state";
import { button, disable, el, fill, set_attributes, set_text } from "./shared/dom";
import { decode, type Model } from "./shared/model";
import { save_text } from "./shared/save";
import { on_theme } from "./shared/theme";
import { module_of, WidgetView } from "./shared/view";

const ANSWER_S = 10;
const KINDS: Kind[] = ["bandwidth", "time"];

class BandwidthView extends WidgetView {
  private readonly form: Form;
  private readonly fill = el("div", { class: "px-fill" });
  private readonly bar = el(
    "div",
    { class: "px-progress", role: "progressbar", "aria-label": "sizes measured", "aria-valuemin": 0 },
    this.fill,
  );
  private readonly far = el("span", { class: "px-far" });
  private readonly charts: Chart[];
  private readonly stage = el("div", {
    class: "px-stage",
    tabindex: 0,
    // Tells screen readers to pass keys on to this element.
    role: "application",
    "aria-label": "bandwidth and time by size; arrow keys go from size to size",
  });
  private readonly said = el("div", { class: "px-said", "aria-live": "polite" });
  private readonly words = el("ul", { class: "px-words" });
  private readonly saving: HTMLButtonElement[] = [];
  private frame: Frame | null = null;
  private named = "";
  private at = -1; // index of the point that the keys have selected

  constructor(model: Model, root: HTMLElement) {
    super(model, root, "px-bandwidth");
    this.form = new Form(this.disposables, {
      run: (asked) => this.ask("run", { ...asked }),
      stop: () => this.ask("stop", {}),
    });
    const header = el("header", { class: "px-bar" }, this.name, this.pill, this.save_buttons());
    const progress = el("div", { class: "px-row" }, this.bar, this.far);
    root.append(header, this.why, this.form.element, progress, this.stage, this.said, this.words);
    this.charts = KINDS.map((kind) => new Chart(kind, (nbytes) => this.say(nbytes)));
    this.stage.append(...this.charts.map((chart) => chart.element));
    this.listen();
    this.on_frame();
  }

  private save_buttons(): HTMLElement {
    const group = el("span", { class: "px-modes", role: "group", "aria-label": "save" });
    for (const form of ["csv", "json"]) {
      const words = form.toUpperCase();
      const made = button(words, "", () => void this.save(form));
      set_attributes(made, { "aria-label": `save as ${words}` });
      this.saving.push(made);
      group.append(made);
    }
    return group;
  }

  private listen(): void {
    this.on("change:frame", () => this.on_frame());
    this.disposables.on<KeyboardEvent>(this.stage, "keydown", (event) => this.on_key(event));
    on_theme(this.disposables, () => this.frame && this.draw(this.frame));
    this.watch();
  }

  private on_frame(): void {
    const frame = decode<Frame>(this.model.get("frame") as DataView);
    if (frame) {
      this.frame = frame;
      this.note_frame();
      this.draw(frame);
    }
    this.update();
  }

  private draw(frame: Frame): void {
    const has_points = (frame.run?.points.length ?? 0) + frame.earlier.length > 0;
    if ((frame.run?.name ?? "") !== this.named) {
      this.named = frame.run?.name ?? ""; // another sweep: the text belonged to the sweep before
      this.at = -1;
      set_text(this.said, "");
    }
    this.stage.hidden = !has_points;
    if (has_points) for (const chart of this.charts) chart.draw(frame);
    const words = has_points ? frame.words : [NO_SWEEP];
    fill(this.words, words, () => el("li"), set_text);
  }

  protected update(): void {
    const { frame } = this;
    if (!frame) {
      fill(this.words, [NO_SWEEP], () => el("li"), set_text);
      return;
    }
    const state = frame.state === "none" ? "ready" : frame.state;
    const is_live = this.show_status(frame, state, frame.error);
    const is_on = is_running(frame) && is_live;
    set_text(this.name, frame.title);
    set_attributes(this.pill, { "data-state": is_live ? state : null });
    this.form.show(frame, is_live, is_on);
    set_text(this.far, frame.progress);
    set_attributes(this.bar, {
      "aria-valuemax": frame.n_points,
      "aria-valuenow": frame.n_done,
      "aria-valuetext": frame.progress,
    });
    this.bar.parentElement?.toggleAttribute("hidden", frame.state === "none");
    this.fill.style.width = `${frame.n_points ? (100 * frame.n_done) / frame.n_points : 0}%`;
    const has_points = (frame.run?.points.length ?? 0) > 0;
    for (const its of this.saving) disable(its, !has_points || !is_live);
  }

  private ask(action: string, args: Record<string, unknown>): void {
    this.form.wait(action);
    const say = (text: string): void => {
      if (this.frame) this.frame.error = text;
      this.update();
    };
    void this.requests.ask(action, args, ANSWER_S, say).then((answer) => {
      this.form.wait("");
      if (this.frame && !answer.ok) this.frame.error = answer.text;
      this.update();
    });
  }

  private async save(form: string): Promise<void> {
    const name = `phalanx-${this.frame?.asked.op ?? "sweep"}.${form}`;
    const answer = await this.requests.ask(form, {}, ANSWER_S);
    if (answer.ok) save_text(name, answer.text, form === "csv" ? "text/csv" : "application/json");
    else if (this.frame) this.frame.error = answer.text;
    this.update();
  }

  private on_key(event: KeyboardEvent): void {
    const points = this.frame?.run?.points ?? [];
    const steps: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, Home: -points.length, End: points.length };
    const step = steps[event.key];
    if (step === undefined || !points.length) return;
    event.preventDefault();
    this.at = Math.min(points.length - 1, Math.max(0, this.at + step));
    const nbytes = points[this.at]?.nbytes ?? null;
    for (const chart of this.charts) chart.point_at(nbytes);
    this.say(nbytes);
  }

  private say(nbytes: number | null): void {
    const points = this.frame?.run?.points ?? [];
    if (nbytes === null || !points.length) return;
    // Compare logarithms, as the axis is logarithmic.
    const far = (n: number): number => Math.abs(Math.log((n || 1) / nbytes));
    const nearest = points.reduce((best, point) => (far(point.nbytes) < far(best.nbytes) ? point : best));
    set_text(this.said, say_point(nearest));
  }

  override close(): void {
    for (const chart of this.charts) chart.close();
    super.close();
  }
}

export default module_of(BandwidthView);
