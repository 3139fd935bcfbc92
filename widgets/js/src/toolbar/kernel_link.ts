// Carries the kernel's news of its ranks to the page, and the page's wishes to the kernel.
//
// `%load_ext phalanx` registers one comm under a fixed id (kernel_ext/phalanx/magics/toolbar.py). Neither side opens it:
// a page without this extension would report a comm that it does not know, and a comm object of the page would start a
// thread in every kernel. A kernel without Phalanx gets one question per start, which runs no code.

import type { Kernel, Message, SessionContext } from "./jupyter";

export const COMM = "phalanx.toolbar";

export type RankState = "starting" | "idle" | "busy" | "dead";

/** How the ranks of a kernel stand. `is_auto`: cells without a magic run on the ranks. */
export interface Frame {
  is_loaded: boolean;
  ranks: RankState[];
  is_auto: boolean;
}

export const UNKNOWN: Frame = { is_loaded: false, ranks: [], is_auto: false };
const FRESH = ["starting", "restarting", "autorestarting", "terminating", "dead"];

export class KernelLink {
  private is_asked = false;

  constructor(
    private readonly session: SessionContext,
    private readonly take: (frame: Frame) => void,
  ) {
    session.statusChanged.connect(this.on_status);
    session.iopubMessage.connect(this.on_message);
  }

  close(): void {
    this.session.statusChanged.disconnect(this.on_status);
    this.session.iopubMessage.disconnect(this.on_message);
  }

  get kernel(): Kernel | null {
    return this.session.session?.kernel ?? null;
  }

  /** Follow the session's kernel, after each change to another kernel. */
  begin(): void {
    this.is_asked = false;
    this.take(UNKNOWN);
    this.on_status(null, this.kernel?.status ?? "unknown");
  }

  /** Switch `%autodistributed` after the cells that were sent before; no effect without ranks. */
  set_auto(on: boolean): void {
    this.send({ kind: "auto", on });
  }

  private readonly on_status = (_: unknown, status: string): void => {
    const { kernel } = this;
    if (FRESH.includes(status)) {
      this.is_asked = false;
      this.take(UNKNOWN);
    } else if (kernel && status === "idle" && !this.is_asked) {
      this.is_asked = true;
      kernel.requestCommInfo({ target_name: COMM }).then(
        (reply) => COMM in (reply.content.comms ?? {}) && kernel === this.kernel && this.send({ kind: "look" }),
        () => undefined, // the kernel has gone meanwhile
      );
    }
  };

  private readonly on_message = (_: unknown, message: Message): void => {
    if (message.header["msg_type"] !== "comm_msg" || message.content["comm_id"] !== COMM) return;
    const frame = message.content["data"] as Frame & { is_new?: boolean };
    this.take(frame);
    if (frame.is_new) this.send({ kind: "look" });
  };

  private send(data: object): void {
    const { kernel } = this;
    if (!kernel) return;
    const header = {
      msg_id: crypto.getRandomValues(new Uint32Array(4)).join("-"),
      msg_type: "comm_msg",
      session: kernel.clientId,
      username: kernel.username,
      date: new Date().toISOString(),
      version: "5.2",
    };
    const content = { comm_id: COMM, data };
    const message: Message = { channel: "shell", header, parent_header: {}, metadata: {}, content, buffers: [] };
    kernel.sendShellMessage(message, false, true);
  }
}

const carrying = new WeakSet<Kernel>();

/** Name the notebook's wish in each cell that is sent: cells of one "Run All" leave before the kernel could ask. */
export function carry_wish(kernel: Kernel, is_wished: () => boolean): void {
  if (carrying.has(kernel)) return;
  carrying.add(kernel);
  const execute = kernel.requestExecute;
  kernel.requestExecute = (content, dispose, metadata) => {
    const carried = is_wished() ? { ...metadata, phalanx: { autodistributed: true } } : metadata;
    return execute.call(kernel, content, dispose, carried);
  };
}
