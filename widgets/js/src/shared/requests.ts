// Questions to the kernel: each has a number, a time limit, and one answer.

import type { Cleanup } from "./dom";
import { send, type Model } from "./model";

export interface Answer {
  ok: boolean;
  text: string;
}

// A kernel says at once that it has heard, from whatever thread. Where nothing is heard so long, the
// front end keeps the click until the cell that runs has ended (VS Code, JupyterLab before 4.4).
const HEARD_S = 2;
export const UNHEARD =
  "the kernel has not heard of this yet: it is busy with a cell, and this front end hands it clicks " +
  "only between cells; the notebook's stop button works meanwhile";

interface Told {
  kind?: unknown;
  id?: unknown;
  ok?: unknown;
  text?: unknown;
}

let n_views = 0;

/** Asks; an answer is text, and so is the reason why there is none. */
export class Requests {
  private n_asked = 0;
  private readonly view: string;
  private readonly waiting = new Map<string, (answer: Answer) => void>();
  private readonly unheard = new Map<string, () => void>();

  constructor(
    private readonly model: Model,
    cleanup: Cleanup,
  ) {
    // Several views of one model hear each other's answers.
    this.view = `${Date.now().toString(36)}-${n_views++}`;
    const on_message = (told: Told): void => this.take(told);
    model.on("msg:custom", on_message);
    cleanup.add(() => model.off("msg:custom", on_message));
    cleanup.add(() => {
      for (const id of [...this.waiting.keys()]) this.end(id, { ok: false, text: "closed" });
    });
  }

  /** Ask; `meanwhile` hears why it takes long, where the kernel has not even heard of it. */
  ask(
    action: string,
    args: Record<string, unknown>,
    timeout_s: number,
    meanwhile: (text: string) => void = () => undefined,
  ): Promise<Answer> {
    const id = `${this.view}-${this.n_asked++}`;
    return new Promise((resolve) => {
      const is_late = (): void => {
        const why = this.unheard.has(id) ? UNHEARD : "the kernel may be busy";
        this.end(id, { ok: false, text: `no answer within ${timeout_s} s: ${why}` });
      };
      const timer = setTimeout(is_late, timeout_s * 1000);
      const soon = setTimeout(() => this.unheard.has(id) && meanwhile(UNHEARD), HEARD_S * 1000);
      this.unheard.set(id, () => clearTimeout(soon));
      this.waiting.set(id, (answer) => {
        clearTimeout(timer);
        resolve(answer);
      });
      if (!send(this.model, { kind: "ask", id, action, ...args })) {
        this.end(id, { ok: false, text: "there is no kernel here to ask" });
      }
    });
  }

  private take(told: Told): void {
    if (typeof told?.id !== "string") return;
    this.hear(told.id);
    if (told.kind === "answer") {
      this.end(told.id, { ok: told.ok === true, text: String(told.text ?? "") });
    }
  }

  private hear(id: string): void {
    this.unheard.get(id)?.();
    this.unheard.delete(id);
  }

  private end(id: string, answer: Answer): void {
    this.hear(id);
    const resolve = this.waiting.get(id);
    this.waiting.delete(id);
    resolve?.(answer);
  }
}
