// Requests to the kernel: each has an id, a timeout and one answer.

import type { Disposables } from "./dom";
import { send, type Model } from "./model";

export interface Answer {
  ok: boolean;
  text: string;
}

// A kernel acks a request at once, from any thread. Without an ack for this long, the front end holds the click until the running
// cell ends (VS Code, JupyterLab before 4.4).
const ACK_S = 2;
export const KERNEL_BUSY =
  "the kernel has not heard of this yet: it is busy with a cell, and this front end hands it clicks " +
  "only between cells; the notebook's stop button works meanwhile";

interface Message {
  kind?: unknown;
  id?: unknown;
  ok?: unknown;
  text?: unknown;
}

let n_views = 0;

/** Sends requests; the answer, or the reason for none, is text. */
export class Requests {
  private n_asked = 0;
  private readonly view: string;
  private readonly waiting = new Map<string, (answer: Answer) => void>();
  private readonly unacked = new Map<string, () => void>();

  constructor(
    private readonly model: Model,
    disposables: Disposables,
  ) {
    // Several views of one model get each other's answers, so ids need a view name.
    this.view = `${Date.now().toString(36)}-${n_views++}`;
    const on_message = (message: Message): void => this.take(message);
    model.on("msg:custom", on_message);
    disposables.add(() => model.off("msg:custom", on_message));
    disposables.add(() => {
      for (const id of [...this.waiting.keys()]) this.end(id, { ok: false, text: "closed" });
    });
  }

  /** Send a request; call `meanwhile` with the reason if no ack comes soon. */
  ask(
    action: string,
    args: Record<string, unknown>,
    timeout_s: number,
    meanwhile: (text: string) => void = () => undefined,
  ): Promise<Answer> {
    const id = `${this.view}-${this.n_asked++}`;
    return new Promise((resolve) => {
      const is_late = (): void => {
        const why = this.unacked.has(id) ? KERNEL_BUSY : "the kernel may be busy";
        this.end(id, { ok: false, text: `no answer within ${timeout_s} s: ${why}` });
      };
      const timer = setTimeout(is_late, timeout_s * 1000);
      const soon = setTimeout(() => this.unacked.has(id) && meanwhile(KERNEL_BUSY), ACK_S * 1000);
      this.unacked.set(id, () => clearTimeout(soon));
      this.waiting.set(id, (answer) => {
        clearTimeout(timer);
        resolve(answer);
      });
      if (!send(this.model, { kind: "ask", id, action, ...args })) {
        this.end(id, { ok: false, text: "there is no kernel here to ask" });
      }
    });
  }

  private take(message: Message): void {
    if (typeof message?.id !== "string") return;
    this.acked(message.id);
    if (message.kind === "answer") {
      this.end(message.id, { ok: message.ok === true, text: String(message.text ?? "") });
    }
  }

  private acked(id: string): void {
    this.unacked.get(id)?.();
    this.unacked.delete(id);
  }

  private end(id: string, answer: Answer): void {
    this.acked(id);
    const resolve = this.waiting.get(id);
    this.waiting.delete(id);
    resolve?.(answer);
  }
}
