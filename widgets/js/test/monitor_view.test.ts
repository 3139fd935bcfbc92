import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import monitor from "../src/monitor";
import type { Frame } from "../src/monitor/state";
import { FakeModel, make_world, packed } from "./support/fakes";
import { frame, rank, row } from "./support/monitor_frames";

const NASTY = "<script>alert(1)</script>";

describe("view", () => {
  let model: FakeModel;
  let root: HTMLElement;
  let close: () => void = () => undefined;

  const show = (n = 2): void => {
    model = new FakeModel();
    root = document.body.appendChild(document.createElement("div"));
    model.values.set("world", packed(make_world(1, n)));
    model.values.set("frame", packed(frame(1, { ranks: Array(n).fill(rank("idle")) })));
    close = monitor.render({ model, el: root });
  };
  const button = (words: string): HTMLButtonElement =>
    [...root.querySelectorAll("button")].find((its) => its.textContent === words) as HTMLButtonElement;
  const label = (at: number): HTMLButtonElement =>
    root.querySelectorAll<HTMLButtonElement>(".px-labels button")[at] as HTMLButtonElement;
  const late = (): string => root.querySelector(".px-late")?.textContent ?? "";
  const settle = async (): Promise<void> => {
    for (let at = 0; at < 4; at++) await Promise.resolve();
  };

  afterEach(() => close()); // its timers would outlive the page
  beforeEach(() => {
    document.body.replaceChildren();
  });

  it("says in words what the lanes show", () => {
    show(3);
    expect(label(2).getAttribute("aria-label")).toContain("rank 2: idle; 0 % of the time");
    expect(late()).toBe("nobody holds the others up");
    model.set("frame", packed(frame(2, { waits: [[[0, 1], [2], `all_sum ${NASTY}`, 4e8]] })));
    expect(late()).toContain("rank 2 holds up ranks 0-1 in all_sum");
    expect(root.querySelector("script")).toBeNull();
    expect(root.querySelector(".px-late.px-alarm")).not.toBeNull();
  });

  it("keeps a share apart from the words that a narrow lane leaves out", () => {
    show(2);
    expect(label(0).querySelector(".px-share")?.textContent).toBe("0 %");
    expect(label(0).querySelector(".px-words")?.textContent).toBe("0 % comm.");
  });

  it("tells who listens what is new, not each time", () => {
    show(3);
    const status = [...root.querySelectorAll("[role=status]")].find((its) => its.classList.contains("px-unseen"));
    const said = new MutationObserver(() => undefined);
    said.observe(status as Element, { childList: true, characterData: true, subtree: true });
    const waits: Frame["waits"] = [[[0, 1], [2], "all_sum #3", 4e8]];
    for (const number of [2, 3, 4]) model.set("frame", packed(frame(number, { waits })));
    expect(said.takeRecords().length).toBe(1);
    expect(status?.textContent).toBe("rank 2 holds up ranks 0-1 in all_sum #3");
    model.set("frame", packed(frame(5)));
    expect(status?.textContent).toBe("");
    // A wait too short to report is too short for an alarm.
    model.set("frame", packed(frame(6, { waits: [[[0], [1], "all_sum #4", 2.1e9]] })));
    expect(root.querySelector(".px-alarm")).toBeNull();
    said.disconnect();
  });

  it("says what is not drawn apart from what it answers", () => {
    show(3);
    const missed = root.querySelector<HTMLElement>(".px-missed");
    expect(missed?.hidden).toBe(true);
    model.set("frame", packed(frame(2, { missed: 3 })));
    expect(missed?.textContent).toBe("not drawn: 3 operations came and went between two looks");
    expect(root.querySelector(".px-foot")?.textContent).toBe("");
  });

  it("asks once for what was before it came, and goes on from there", async () => {
    show();
    expect(model.sent.filter((its) => its["action"] === "history").length).toBe(1);
    const spans = [row(1100, 1120, { op: "broadcast" })];
    model.answer(true, JSON.stringify([frame(1, { spans }), frame(2)]));
    await settle();
    expect(root.querySelector(".px-legend")?.textContent).toContain("broadcast");
    model.set("frame", packed(frame(3, { spans: [row(1300, 1310)] })));
    expect(root.querySelector(".px-legend")?.textContent).toContain("all_sum");
  });

  it("stops and goes on, and says how much time it shows", () => {
    show();
    const pause = button("Pause");
    pause.click();
    expect([pause.textContent, pause.getAttribute("aria-pressed")]).toEqual(["Paused", "true"]);
    button("+").click();
    expect(root.querySelector(".px-span")?.textContent).toBe("5 s");
    button("Now").click();
    expect(pause.textContent).toBe("Pause");
  });

  it("chooses a rank, with the keyboard as well", () => {
    show(3);
    label(1).click();
    expect(label(1).getAttribute("aria-pressed")).toBe("true");
    expect(root.querySelector(".px-facts")?.textContent).toContain("process 41200");
    [0, 1, 2].forEach((at) => (label(at).getBoundingClientRect = () => ({ top: at }) as DOMRect)); // one below the other
    label(1).dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
    expect(document.activeElement).toBe(label(2));
    const canvas = root.querySelector("canvas") as HTMLCanvasElement;
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp" }));
    expect(label(0).getAttribute("aria-pressed")).toBe("true");
  });

  it("tells operations one after the other with N and P, and leads to their cell", () => {
    const page = document.body.appendChild(document.createElement("div"));
    page.className = "jp-Notebook";
    page.innerHTML = '<div class="jp-CodeCell"><div class="jp-InputPrompt">[7]:</div></div>';
    const cell = page.firstElementChild as HTMLElement;
    cell.scrollIntoView = vi.fn();
    show();
    page.append(root);
    const spans = [row(1100, 1120), row(1150, 1170, { op: "barrier" })];
    model.set("frame", packed(frame(2, { spans, cells: [[0, "a", 1050, 1180, 7]] })));
    const press = (key: string): boolean =>
      (root.querySelector("canvas") as HTMLCanvasElement).dispatchEvent(new KeyboardEvent("keydown", { key }));
    const tip = root.querySelector(".px-tip") as HTMLElement;
    press("p");
    expect(tip.textContent).toContain("barrier #5");
    expect(tip.textContent).toContain("cell [7]");
    press("p");
    expect(tip.textContent).toContain("all_sum #5");
    press("Enter");
    expect(cell.scrollIntoView).toHaveBeenCalled();
    press("Escape");
    expect(tip.hidden).toBe(true);
    press("Enter");
    expect(root.querySelector(".px-foot")?.textContent).toBe("no cell ran there");
  });

  it("shows other ranks in as many lanes as there are, none of them chosen", () => {
    show(16);
    label(7).click();
    model.set("frame", packed(frame(2, { ranks: Array(16).fill(rank("busy")), spans: [row(1100, 1110)] })));
    button("Pause").click();
    model.set("world", packed(make_world(1, 2)));
    model.set("frame", packed(frame(0, { ranks: [], world: 1 })));
    model.set("frame", packed(frame(1, { spans: [row(1100, 1110, { op: "barrier" })], world: 1 })));
    expect(root.querySelectorAll(".px-labels button").length).toBe(2);
    expect(root.querySelector<HTMLElement>(".px-facts")?.hidden).toBe(true);
    expect(button("Pause").getAttribute("aria-pressed")).toBe("false");
    expect(root.querySelector(".px-legend")?.textContent).not.toContain("all_sum");
  });

  it("saves the file, and says what is in it", async () => {
    show();
    const saved: Blob[] = [];
    URL.createObjectURL = (blob: Blob) => `blob:${saved.push(blob)}`;
    URL.revokeObjectURL = () => undefined;
    button("Save a trace").click();
    model.answer(true, 'trace.json: 3 operations of ranks 0-1\n{"traceEvents":[]}');
    await settle();
    expect(root.querySelector(".px-foot")?.textContent).toBe("trace.json: 3 operations of ranks 0-1");
    expect(await saved[0]?.text()).toBe('{"traceEvents":[]}');
  });

  it("says why it could not save", async () => {
    show();
    button("Save a trace").click();
    model.answer(false, NASTY);
    await settle();
    expect(root.querySelector(".px-foot")?.textContent).toBe(NASTY);
    expect(root.querySelector("script")).toBeNull();
  });

  it("has small labels for many ranks", () => {
    show(64);
    expect(root.querySelectorAll(".px-labels.px-small button").length).toBe(64);
  });
});
