// The live Bandwidth widget: a sweep with its limits and earlier sweeps. It draws the frames of phalanx.widgets.Bandwidth, and
// turns clicks into requests.

import { createRef, type ComponentChildren, type VNode } from "preact";

import { Chart } from "./bandwidth/chart";
import { Form } from "./bandwidth/form";
import { is_running, NO_SWEEP, say_point, type Frame } from "./bandwidth/state";
import { button } from "./shared/dom";
import { save_text } from "./shared/save";
import { on_theme } from "./shared/theme";
import { module_of, WidgetView } from "./shared/view";

const ANSWER_S = 10;

class BandwidthView extends WidgetView<Frame> {
  private readonly form = new Form(
    () => this.update(),
    (action, args) => this.ask(action, args),
  );
  private readonly charts = [createRef<Chart>(), createRef<Chart>()];
  private error = ""; // of the last request, until the next frame
  private said = "";
  private at = -1; // index of the point that the keys have selected

  override open(style: string): void {
    super.open(style);
    on_theme(this.disposables, () => this.charts.forEach((chart) => chart.current?.draw()));
  }

  protected override take(frame: Frame): void {
    if (frame.run?.name !== this.frame?.run?.name) {
      this.said = ""; // it belonged to the sweep before
      this.at = -1;
    }
    this.frame = frame;
    this.error = frame.error;
    this.form.take(frame);
  }

  protected view(): ComponentChildren {
    const { frame, is_live } = this;
    const has_points = (frame?.run?.points.length ?? 0) > 0;
    const is_drawn = has_points || (frame?.earlier.length ?? 0) > 0;
    const state = !frame || frame.state === "none" ? "ready" : frame.state;
    return (
      <>
        {this.top(frame?.title ?? "", "", this.save_buttons(has_points && is_live), state, this.error)}
        {this.form.view(is_live, frame !== null && is_running(frame) && is_live)}
        <div class="px-row" hidden={!frame || frame.state === "none"}>
          {frame && this.progress(frame)}
        </div>
        <div
          class="px-stage"
          hidden={!is_drawn}
          tabIndex={0}
          role="application" // tells screen readers to pass keys on to this element
          aria-label="bandwidth and time by size; arrow keys go from size to size"
          onKeyDown={(event) => this.on_key(event)}
        >
          {is_drawn && frame && (
            <>
              <Chart ref={this.charts[0] ?? null} kind="bandwidth" frame={frame} on_point={(nbytes) => this.say(nbytes)} />
              <Chart ref={this.charts[1] ?? null} kind="time" frame={frame} on_point={(nbytes) => this.say(nbytes)} />
            </>
          )}
        </div>
        <div class="px-said px-soft" aria-live="polite">
          {this.said}
        </div>
        <ul class="px-words px-soft">
          {(is_drawn && frame ? frame.words : [NO_SWEEP]).map((words) => (
            <li>{words}</li>
          ))}
        </ul>
      </>
    );
  }

  private save_buttons(is_on: boolean): VNode {
    return (
      <span class="px-modes" role="group" aria-label="save">
        {["CSV", "JSON"].map((form) =>
          button(form, "", () => void this.save(form.toLowerCase()), { "aria-label": `save as ${form}`, is_off: !is_on })
        )}
      </span>
    );
  }

  private progress({ n_done, n_points, progress }: Frame): VNode {
    return (
      <>
        <div
          class="px-progress"
          role="progressbar"
          aria-label="sizes measured"
          aria-valuemin={0}
          aria-valuemax={n_points}
          aria-valuenow={n_done}
          aria-valuetext={progress}
        >
          <div class="px-fill" style={{ width: `${n_points ? (100 * n_done) / n_points : 0}%` }} />
        </div>
        <span class="px-far px-soft">{progress}</span>
      </>
    );
  }

  private fail(text: string): void {
    this.error = text;
    this.update();
  }

  private ask(action: string, args: object): Promise<void> {
    return this.requests
      .ask(action, { ...args }, ANSWER_S, (text) => this.fail(text))
      .then(({ ok, text }) => void (ok || this.fail(text)));
  }

  private async save(form: string): Promise<void> {
    const { ok, text } = await this.requests.ask(form, {}, ANSWER_S);
    const name = `phalanx-${this.frame?.asked.op ?? "sweep"}.${form}`;
    if (ok) save_text(name, text, form === "csv" ? "text/csv" : "application/json");
    else this.fail(text);
  }

  private on_key(event: KeyboardEvent): void {
    const points = this.frame?.run?.points ?? [];
    const steps: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, Home: -points.length, End: points.length };
    const step = steps[event.key];
    if (step === undefined || !points.length) return;
    event.preventDefault();
    this.at = Math.min(points.length - 1, Math.max(0, this.at + step));
    const nbytes = points[this.at]?.nbytes ?? null;
    for (const chart of this.charts) chart.current?.point_at(nbytes);
    this.say(nbytes);
  }

  private say(nbytes: number | null): void {
    const points = this.frame?.run?.points ?? [];
    if (nbytes === null || !points.length) return;
    // Compare logarithms, as the axis is logarithmic.
    const far = (n: number): number => Math.abs(Math.log((n || 1) / nbytes));
    this.said = say_point(points.reduce((best, point) => (far(point.nbytes) < far(best.nbytes) ? point : best)));
    this.update();
  }
}

export default module_of(BandwidthView, "px-bandwidth");
