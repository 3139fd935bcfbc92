// The panel of the selected rank: facts and actions.

import type { VNode } from "preact";

import { button } from "../shared/dom";
import type { Requests } from "../shared/requests";
import { facts, STATES, type Frame, type World } from "./state";

const LOOK_S = 15;
const RESTART_S = 120; // longer than the workspace's timeout for a restart

export class Details {
  private rank = -1;
  private is_sure = false; // restart of a live rank was pressed once
  private is_asking = false;
  private said = "";
  private is_failure = false;
  private now = 0;

  constructor(
    private readonly requests: Requests,
    private readonly update: () => void,
    private readonly close: () => void,
  ) {}

  view(world: World, frame: Frame, rank: number, since_frame_s: number, is_live: boolean): VNode | null {
    if (rank !== this.rank) Object.assign(this, { rank, is_sure: false, said: "", is_failure: false });
    const now = frame.ranks[rank];
    if (!now) return null;
    this.now = frame.now + since_frame_s;
    const is_dead = now.state === "dead";
    const is_off = this.is_asking || !is_live;
    const ask = (action: string, meanwhile: string) => () => this.ask(action, { rank }, meanwhile);
    const interrupt = ask("interrupt", "asking the ranks to stop …");
    const words = this.is_sure ? "Restart: its variables go" : "Restart";
    const look = this.is_sure || is_dead ? "px-button px-alarm" : "px-button";
    return (
      <section class="px-details" data-state={now.state} aria-label={`rank ${rank}`}>
        <h3>{`rank ${rank} · ${STATES[now.state].words}`}</h3>
        <dl>
          {facts(world, frame, rank, since_frame_s).flatMap(([name, value]) => [<dt class="px-soft">{name}</dt>, <dd>{value}</dd>])}
        </dl>
        <div class="px-buttons">
          {button("Where is it?", "the rank's stack, as seen from outside", ask("stacks", "looking …"), {
            is_off: is_off || is_dead,
          })}
          {button("Last operations", "what this rank's flight recorder holds", ask("operations", "reading …"), { is_off })}
          {button("Interrupt the cell", "stop the cell that runs, on all its ranks", interrupt, { is_off })}
          {button(words, "put a new process in this rank's place", () => this.restart(is_dead), { is_off, class: look })}
          {button("Close", "close this panel", this.close)}
        </div>
        <pre role="status" aria-live="polite" tabIndex={0} class={this.is_failure ? "px-failed" : ""} hidden={!this.said}>
          {this.said}
        </pre>
      </section>
    );
  }

  private restart(is_dead: boolean): void {
    const { rank } = this;
    if (is_dead || this.is_sure) {
      this.ask("restart", { rank, force: !is_dead }, `starting a new rank ${rank} …`, RESTART_S);
      return;
    }
    this.is_sure = true;
    this.said = `rank ${rank} lives: press again to end it and start a new one in its place`;
    this.update();
  }

  private ask(action: string, args: Record<string, unknown>, meanwhile: string, timeout_s = LOOK_S): void {
    const { rank } = this;
    const say = (text: string, is_failure = false): void => {
      if (rank === this.rank) Object.assign(this, { said: text, is_failure });
      this.update();
    };
    this.is_asking = true;
    this.is_sure = false;
    say(meanwhile);
    // On the kernel's clock: the kernel drops the request if it reads it later, after a long cell.
    const until = this.now + timeout_s;
    void this.requests.ask(action, { ...args, until }, timeout_s, say).then(({ ok, text }) => {
      this.is_asking = false;
      say(text, !ok);
    });
  }
}
