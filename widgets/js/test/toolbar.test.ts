import { afterEach, describe, expect, it, vi } from "vitest";
import { RankField, type Host, type Wish } from "../src/toolbar/field";
import type { Kernel, Message, SessionContext, Signal } from "../src/toolbar/jupyter";
import { COMM, KernelLink, UNKNOWN, carry_wish, type Frame, type RankState } from "../src/toolbar/kernel_link";

const up = (ranks: RankState[], is_auto = false): Frame => ({ is_loaded: true, ranks, is_auto });

/** A notebook around a field: what it was asked to do, and what its person answers. */
class FakeHost implements Host {
  readonly ran: string[] = [];
  readonly asked: string[] = [];
  readonly switched: boolean[] = [];
  wishes: Wish = {};
  busy = false;
  says_yes = true;
  end: (value?: unknown) => void = () => undefined;
  readonly field = new RankField(this);

  is_busy(): boolean {
    return this.busy;
  }
  wish(): Wish {
    return this.wishes;
  }
  keep(wish: Wish): void {
    this.wishes = { ...this.wishes, ...wish };
  }
  set_auto(on: boolean): void {
    this.switched.push(on);
  }
  run(code: string): Promise<unknown> {
    this.ran.push(code);
    return new Promise((resolve) => (this.end = resolve));
  }
  confirm(title: string, body: string): Promise<boolean> {
    this.asked.push(`${title} ${body}`);
    return Promise.resolve(this.says_yes);
  }

  find<E extends HTMLElement>(selector: string): E {
    return this.field.node.querySelector(selector) as E;
  }
  get number(): HTMLInputElement {
    return this.find("input[type=text]");
  }
  get action(): string {
    const button = this.find<HTMLButtonElement>(".px-apply");
    return button.hidden ? "" : (button.textContent ?? "");
  }
  get auto(): HTMLInputElement {
    return this.find("input[type=checkbox]");
  }
  type(text: string, key = ""): void {
    this.number.value = text;
    this.number.dispatchEvent(new Event("input"));
    if (key) this.press(key);
  }
  /** Press a key; return whether the page does nothing else with it. */
  press(key: string): boolean {
    return !this.number.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
  }
}

describe("the field", () => {
  it("offers a start where no ranks run, and loads Phalanx first where it is not loaded", async () => {
    const host = new FakeHost();
    expect([host.number.value, host.action, host.find(".px-dots").hidden]).toEqual(["4", "Start", true]);
    host.find(".px-apply").click();
    expect(host.ran).toEqual(["%load_ext phalanx\n%distributed start -n 4"]);
    expect(host.wishes).toEqual({ ranks: 4 });
    expect(host.asked).toEqual([]);
    host.find(".px-apply").click(); // the first start still runs
    host.end();
    await vi.waitFor(() => expect(host.find<HTMLButtonElement>(".px-apply").disabled).toBe(false));
    host.field.take(up([]));
    host.type("2", "Enter");
    expect(host.ran.slice(1)).toEqual(["%distributed start -n 2"]);
    expect(host.find(".px-note").textContent).toBe("");
  });

  it("offers the number that the notebook was last used with", () => {
    const host = new FakeHost();
    host.wishes = { ranks: 7 };
    host.field.draw();
    expect(host.number.value).toBe("7");
  });

  it("shows a dot for each rank, by state", () => {
    const host = new FakeHost();
    host.field.take(up(["idle", "busy", "dead", "busy"]));
    const dots = [...host.field.node.querySelectorAll("i")].map((dot) => dot.dataset["state"]);
    expect(dots).toEqual(["idle", "busy", "dead", "busy"]);
    expect(host.find(".px-dots").title).toBe("4 ranks. dead: 2; running: 1,3; idle: 0. Click to show the topology");
    expect([host.number.value, host.action]).toEqual(["4", ""]);
    host.find(".px-dots").click();
    expect(host.ran).toEqual(["%distributed topology"]);
  });

  it("counts many ranks", () => {
    const host = new FakeHost();
    host.field.take(up([...Array<RankState>(60).fill("idle"), ...Array<RankState>(4).fill("busy")]));
    expect(host.find(".px-dots").textContent).toBe("460");
    expect(host.field.node.querySelectorAll("i").length).toBe(2);
  });

  it("restarts with another number only when told that variables are lost", async () => {
    const host = new FakeHost();
    host.field.take(up(["idle", "idle"]));
    host.says_yes = false;
    host.type("3", "Enter");
    await vi.waitFor(() => expect(host.number.value).toBe("2"));
    expect([host.ran, host.wishes]).toEqual([[], {}]);
    host.says_yes = true;
    host.busy = true;
    host.type("3");
    expect(host.action).toBe("Restart");
    expect(host.press("Enter")).toBe(true);
    await vi.waitFor(() => expect(host.ran).toEqual(["%distributed stop\n%distributed start -n 3"]));
    expect(host.asked.pop()).toBe("Restart with 3 ranks? All variables on the 2 ranks will be lost.");
    expect(host.find(".px-note").textContent).toBe("after the running cell");
    host.end();
    await vi.waitFor(() => expect(host.find(".px-note").textContent).toBe(""));
  });

  it("stops at 0", async () => {
    const host = new FakeHost();
    host.field.take(up(["idle"]));
    host.type("0");
    expect(host.action).toBe("Stop");
    host.press("Enter");
    await vi.waitFor(() => expect(host.ran).toEqual(["%distributed stop"]));
    expect(host.asked).toEqual(["Stop 1 rank? All variables on the 1 rank will be lost."]);
    expect(host.wishes.ranks).toBeUndefined();
  });

  it("keeps what is typed while ranks change, until Escape", () => {
    const host = new FakeHost();
    host.field.take(up(["idle"]));
    host.type("12");
    host.field.take(up(["busy"]));
    expect(host.number.value).toBe("12");
    host.press("Escape");
    expect([host.number.value, host.action]).toEqual(["1", ""]);
  });

  it.each(["", "x", "-1", "1e3", "10000", "<b>"])("refuses %j", (text) => {
    const host = new FakeHost();
    host.type(text, "Enter");
    expect([host.ran, host.action, host.number.getAttribute("aria-invalid")]).toEqual([[], "", "true"]);
  });
});

describe("the switch", () => {
  const click = (host: FakeHost): void => {
    document.body.append(host.field.node); // a box outside the page changes in silence
    host.auto.click();
  };

  it("is kept in the notebook and told to the kernel", () => {
    const host = new FakeHost();
    click(host);
    expect([host.wishes, host.switched]).toEqual([{ autodistributed: true }, [true]]);
  });

  it("follows %autodistributed while ranks run", () => {
    const host = new FakeHost();
    host.field.take(up(["idle"], true));
    expect([host.wishes.autodistributed, host.auto.checked]).toEqual([true, true]);
    host.field.take(up([]));
    expect(host.auto.checked).toBe(true); // a stop is no wish
    host.field.take(up(["starting"]));
    expect(host.auto.checked).toBe(true);
    host.field.take(up(["idle"], false));
    expect(host.auto.checked).toBe(false);
  });

  it("does not flip back while the kernel is busy with a cell", () => {
    const host = new FakeHost();
    host.field.take(up(["busy", "busy"]));
    click(host);
    host.field.take(up(["busy", "idle"]));
    expect(host.auto.checked).toBe(true);
    host.field.take(up(["idle", "idle"], true));
    host.field.take(up(["idle", "idle"], false)); // typed later
    expect(host.auto.checked).toBe(false);
  });

  it("leaves the metadata of a notebook without Phalanx alone", () => {
    const host = new FakeHost();
    host.field.take(UNKNOWN);
    host.field.take(up([]));
    host.field.take(up(["idle"]));
    expect(host.wishes).toEqual({});
  });
});

class FakeSignal<T> implements Signal<T> {
  readonly slots = new Set<(sender: unknown, args: T) => void>();
  connect(slot: (sender: unknown, args: T) => void): void {
    this.slots.add(slot);
  }
  disconnect(slot: (sender: unknown, args: T) => void): void {
    this.slots.delete(slot);
  }
  emit(args: T): void {
    for (const slot of this.slots) slot(this, args);
  }
}

class FakeKernel implements Kernel {
  status = "idle";
  readonly clientId = "page";
  readonly username = "ann";
  readonly info = Promise.resolve({ language_info: { name: "python" } });
  readonly sent: unknown[] = [];
  readonly executed: unknown[] = [];
  n_asked = 0;
  comms = {};

  requestCommInfo(): Promise<{ content: { comms: object } }> {
    this.n_asked += 1;
    return Promise.resolve({ content: { comms: this.comms } });
  }
  requestExecute(_content: object, _dispose?: boolean, metadata?: object): void {
    this.executed.push(metadata);
  }
  sendShellMessage(message: Message): void {
    expect(message.content["comm_id"]).toBe(COMM);
    this.sent.push(message.content["data"]);
  }
}

class FakeSession implements SessionContext {
  session = { kernel: new FakeKernel() };
  readonly kernelChanged = new FakeSignal<unknown>();
  readonly statusChanged = new FakeSignal<string>();
  readonly iopubMessage = new FakeSignal<Message>();
  readonly frames: Frame[] = [];

  publish(data: object, comm_id = COMM): void {
    const header = { msg_type: "comm_msg" };
    this.iopubMessage.emit({
      channel: "iopub",
      header,
      parent_header: {},
      metadata: {},
      content: { comm_id, data },
      buffers: [],
    });
  }
}

describe("the link to the kernel", () => {
  let link: KernelLink | null = null;
  afterEach(() => link?.close());
  const follow = (session: FakeSession): KernelLink => {
    const made = new KernelLink(session, (frame) => session.frames.push(frame));
    made.begin();
    return made;
  };
  const settle = (): Promise<void> => new Promise((then) => setTimeout(then));

  it("asks a kernel once, and sends nothing where Phalanx is not loaded", async () => {
    const session = new FakeSession();
    const { kernel } = session.session;
    link = follow(session);
    for (const status of ["busy", "idle", "busy", "idle"]) session.statusChanged.emit(status);
    session.publish({ is_loaded: true }, "another comm");
    await settle();
    expect([kernel.n_asked, kernel.sent, session.frames]).toEqual([1, [], [UNKNOWN]]);
  });

  it("finds Phalanx in a kernel that a reloaded page meets", async () => {
    const session = new FakeSession();
    session.session.kernel.comms = { [COMM]: { target_name: COMM } };
    link = follow(session);
    await settle();
    expect(session.session.kernel.sent).toEqual([{ kind: "look" }]);
  });

  it("answers the first message after %load_ext, and takes what follows", async () => {
    const session = new FakeSession();
    link = follow(session);
    await settle();
    session.publish({ ...up([]), is_new: true });
    expect(session.session.kernel.sent).toEqual([{ kind: "look" }]);
    session.publish(up(["idle"]));
    expect(session.frames.pop()).toEqual(up(["idle"]));
    link.set_auto(true);
    expect(session.session.kernel.sent.pop()).toEqual({ kind: "auto", on: true });
  });

  it("knows nothing of a kernel that starts anew, and asks it again", async () => {
    const session = new FakeSession();
    link = follow(session);
    session.publish(up(["idle"]));
    session.statusChanged.emit("restarting");
    expect(session.frames.pop()).toEqual(UNKNOWN);
    session.statusChanged.emit("idle");
    await settle();
    expect(session.session.kernel.n_asked).toBe(2);
    session.session = { kernel: new FakeKernel() };
    link.begin();
    expect(session.session.kernel.n_asked).toBe(1);
  });

  it("lets go of the session at its end", () => {
    const session = new FakeSession();
    new KernelLink(session, () => undefined).close();
    for (const signal of [session.statusChanged, session.iopubMessage]) {
      expect(signal.slots.size).toBe(0);
    }
  });

  it("names the notebook's wish in each cell, once", () => {
    const kernel = new FakeKernel();
    let is_wished = false;
    carry_wish(kernel, () => is_wished);
    carry_wish(kernel, () => is_wished);
    kernel.requestExecute({}, false, { cellId: "a" });
    is_wished = true;
    kernel.requestExecute({}, false, { cellId: "a" });
    expect(kernel.executed).toEqual([{ cellId: "a" }, { cellId: "a", phalanx: { autodistributed: true } }]);
  });
});
