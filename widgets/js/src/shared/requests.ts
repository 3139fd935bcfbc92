// Questions to the kernel: each has a number, a time limit, and one answer.

import type { Cleanup } from "./dom";
import { send, type Model } from "./model";

export interface Answer {
  ok: boolean;
  text: string;
}

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

  ask(action: string, args: Record<string, unknown>, timeout_s: number): Promise<Answer> {
    const id = `${this.view}-${this.n_asked++}`;
    return new Promise((resolve) => {
      const late = { ok: false, text: `no answer within ${timeout_s} s: the kernel may be busy` };
      const timer = setTimeout(() => this.end(id, late), timeout_s * 1000);
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
    if (told?.kind === "answer" && typeof told.id === "string") {
      this.end(told.id, { ok: told.ok === true, text: String(told.text ?? "") });
    }
  }

  private end(id: string, answer: Answer): void {
    const resolve = this.waiting.get(id);
    this.waiting.delete(id);
    resolve?.(answer);
  }
}
