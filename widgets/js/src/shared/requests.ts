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
  private readonly waiting = new Map<string, (message: Message) => void>();

  constructor(
    private readonly model: Model,
    disposables: Disposables,
  ) {
    // Several views of one model get each other's answers, so ids need a view name.
    this.view = `${Date.now().toString(36)}-${n_views++}`;
    const on_message = (message: Message): void => this.waiting.get(String(message?.id))?.(message);
    model.on("msg:custom", on_message);
    disposables.add(() => model.off("msg:custom", on_message));
    disposables.add(() => {
      for (const end of this.waiting.values()) end({ kind: "answer", ok: false, text: "closed" });
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
      let is_acked = false;
      const end = (ok: boolean, text: string): void => {
        this.waiting.delete(id);
        clearTimeout(soon);
        clearTimeout(late);
        resolve({ ok, text });
      };
      const soon = setTimeout(() => meanwhile(KERNEL_BUSY), ACK_S * 1000);
      const late = setTimeout(() => {
        end(false, `no answer within ${timeout_s} s: ${is_acked ? "the kernel may be busy" : KERNEL_BUSY}`);
      }, timeout_s * 1000);
      this.waiting.set(id, (message) => {
        is_acked = true;
        clearTimeout(soon);
        if (message.kind === "answer") end(message.ok === true, String(message.text ?? ""));
      });
      if (!send(this.model, { kind: "ask", id, action, ...args })) end(false, "there is no kernel here to ask");
    });
  }
}
