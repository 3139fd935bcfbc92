import { describe, expect, it, vi } from "vitest";
import monitor from "../src/monitor";
import type { Frame } from "../src/monitor/state";
import { make_world } from "./support/fakes";
import { frame, rank, row } from "./support/monitor_frames";
import { Page } from "./support/pages";

const NASTY = "<script>alert(1)</script>";

describe("view", () => {
  let page: Page;
  const show = (n = 2): void => {
    page = new Page(monitor, { world: make_world(1, n), frame: frame(1, { ranks: Array(n).fill(rank("idle")) }) });
  };
  const label = (at: number): HTMLButtonElement =>
    page.root.querySelectorAll<HTMLButtonElement>(".px-labels button")[at] as HTMLButtonElement;

  it("says in words what the lanes show", () => {
    show(3);
    expect(label(2).getAttribute("aria-label")).toContain("rank 2: idle; 0 % of the time");
    expect(page.text(".px-late")).toBe("nobody holds the others up");
    page.put({ frame: frame(2, { waits: [[[0, 1], [2], `all_sum ${NASTY}`, 4e8]] }) });
    expect(page.text(".px-late")).toContain("rank 2 holds up ranks 0-1 in all_sum");
    expect(page.root.querySelector("script")).toBeNull();
    expect(page.root.querySelector(".px-late.px-alarm")).not.toBeNull();
  });

  it("keeps a share apart from the words that a narrow lane leaves out", () => {
    show(2);
    expect(label(0).querySelector(".px-share")?.textContent).toBe("0 %");
    expect(label(0).querySelector(".px-words")?.textContent).toBe("0 % comm.");
  });

  it("tells who listens what is new, not each time", () => {
    show(3);
    const status = [...page.root.querySelectorAll("[role=status]")].find((its) => its.classList.contains("px-unseen"));
    const said = new MutationObserver(() => undefined);
    said.observe(status as Element, { childList: true, characterData: true, subtree: true });
    const waits: Frame["waits"] = [[[0, 1], [2], "all_sum #3", 4e8]];
    for (const number of [2, 3, 4]) page.put({ frame: frame(number, { waits }) });
    expect(said.takeRecords().length).toBe(1);
    expect(status?.textContent).toBe("rank 2 holds up ranks 0-1 in all_sum #3");
    page.put({ frame: frame(5) });
    expect(status?.textContent).toBe("");
    // A wait too short to report is too short for an alarm.
    page.put({ frame: frame(6, { waits: [[[0], [1], "all_sum #4", 2.1e9]] }) });
    expect(page.root.querySelector(".px-alarm")).toBeNull();
    said.disconnect();
  });

  it("says what is not drawn apart from what it answers", () => {
    show(3);
    const missed = page.find(".px-missed");
    expect(missed?.hidden).toBe(true);
    page.put({ frame: frame(2, { missed: 3 }) });
    expect(missed?.textContent).toBe("not drawn: 3 operations came and went between two looks");
    expect(page.text(".px-foot")).toBe("");
  });

  it("asks once for what was before it came, and goes on from there", async () => {
    show();
    expect(page.asked.filter((its) => its["action"] === "history").length).toBe(1);
    const spans = [row(1100, 1120, { op: "broadcast" })];
    await page.answer(true, JSON.stringify([frame(1, { spans }), frame(2)]));
    expect(page.text(".px-legend")).toContain("broadcast");
    page.put({ frame: frame(3, { spans: [row(1300, 1310)] }) });
    expect(page.text(".px-legend")).toContain("all_sum");
  });

  it("stops and goes on, and says how much time it shows", () => {
    show();
    const pause = page.button("Pause");
    pause.click();
    expect([pause.textContent, pause.getAttribute("aria-pressed")]).toEqual(["Paused", "true"]);
    page.button("+").click();
    expect(page.text(".px-span")).toBe("5 s");
    page.button("Now").click();
    expect(pause.textContent).toBe("Pause");
  });

  it("chooses a rank, with the keyboard as well", () => {
    show(3);
    label(1).click();
    expect(label(1).getAttribute("aria-pressed")).toBe("true");
    expect(page.text(".px-facts")).toContain("process 41200");
    page.press(["ArrowUp"], page.find("canvas"));
    expect(label(0).getAttribute("aria-pressed")).toBe("true");
  });

  it("tells operations one after the other with N and P, and leads to their cell", () => {
    show();
    const notebook = document.body.appendChild(document.createElement("div"));
    notebook.className = "jp-Notebook";
    notebook.innerHTML = '<div class="jp-CodeCell"><div class="jp-InputPrompt">[7]:</div></div>';
    notebook.append(page.root);
    const cell = notebook.firstElementChild as HTMLElement;
    cell.scrollIntoView = vi.fn();
    const spans = [row(1100, 1120), row(1150, 1170, { op: "barrier" })];
    page.put({ frame: frame(2, { spans, cells: [[0, "a", 1050, 1180, 7]] }) });
    const press = (key: string): void => page.press([key], page.find("canvas"));
    const tip = page.find<HTMLElement>(".px-tip");
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
    expect(page.text(".px-foot")).toBe("no cell ran there");
  });

  it("shows other ranks in as many lanes as there are, none of them chosen", () => {
    show(16);
    label(7).click();
    page.put({ frame: frame(2, { ranks: Array(16).fill(rank("busy")), spans: [row(1100, 1110)] }) });
    page.button("Pause").click();
    page.put({ world: make_world(1, 2) });
    page.put({ frame: frame(0, { ranks: [], world: 1 }) });
    page.put({ frame: frame(1, { spans: [row(1100, 1110, { op: "barrier" })], world: 1 }) });
    expect(page.root.querySelectorAll(".px-labels button").length).toBe(2);
    expect(page.find(".px-facts")?.hidden).toBe(true);
    expect(page.button("Pause").getAttribute("aria-pressed")).toBe("false");
    expect(page.text(".px-legend")).not.toContain("all_sum");
  });

  it("saves the file, and says what is in it", async () => {
    show();
    const saved: Blob[] = [];
    URL.createObjectURL = (blob: Blob) => `blob:${saved.push(blob)}`;
    URL.revokeObjectURL = () => undefined;
    page.button("Save a trace").click();
    await page.answer(true, 'trace.json: 3 operations of ranks 0-1\n{"traceEvents":[]}');
    expect(page.text(".px-foot")).toBe("trace.json: 3 operations of ranks 0-1");
    expect(await saved[0]?.text()).toBe('{"traceEvents":[]}');
    page.button("Save a trace").click();
    await page.answer(false, "the ranks do not answer");
    expect(page.text(".px-foot")).toBe("the ranks do not answer");
    expect(saved.length).toBe(1);
  });
});
