// What the three views have in common: they show the newest frame, say when none comes, and leave nothing behind.
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import bandwidth from "../src/bandwidth";
import monitor from "../src/monitor";
import topology from "../src/topology";
import { make_frame, make_rank, make_world } from "./support/fakes";
import { nodes_of, Page } from "./support/pages";
import { frame, rank } from "./support/monitor_frames";
import { FakePlot, make_frame as make_sweep } from "./support/sweeps";

vi.mock("uplot", async () => ({ default: (await import("./support/sweeps")).FakePlot }));

type Status = { status?: "live" | "gone"; why?: string };
/** Frame `n` of each view, with other words in each. */
const topology_frame = (n: number, more: Status = {}): object =>
  make_frame([0, 1].map((at) => make_rank("busy", { rss: (n + at) << 20, last: `${n}` })), { now: 1012 + n, ...more });
const monitor_frame = (n: number, more: Status = {}): object =>
  frame(n, { ranks: [0, 1].map((at) => rank("busy", { share: (n % 50) / 100, arena: 1e6 * (n + at) })), ...more });
const sweep_frame = (n: number, more: Status = {}): object =>
  make_sweep(3, { progress: `${n} of 100 sizes`, words: [`limit ${n}`], ...more });

describe.each([
  ["topology", topology, topology_frame],
  ["monitor", monitor, monitor_frame],
  ["bandwidth", bandwidth, sweep_frame],
] as const)("%s", (name, view, make) => {
  let page: Page;
  const show = (n: number, more: Status = {}): void => page.put({ frame: make(n, more) });
  const is_grey = (): boolean => page.root.classList.contains("px-grey");

  beforeEach(() => {
    vi.useFakeTimers();
    page = new Page(view, { selected: 0, world: make_world(1, 2) });
    show(1);
  });
  afterEach(() => vi.useRealTimers());

  it("keeps every node of the page while frames change the words", () => {
    show(2);
    const before = [...nodes_of(page.root)];
    const words = page.root.textContent;
    for (let n = 3; n <= 102; n++) show(n);
    expect(page.root.textContent).not.toBe(words);
    expect([...nodes_of(page.root)].filter((its, at) => its !== before[at])).toEqual([]);
  });

  it("goes grey with the reason, and comes back", () => {
    show(1, { status: "gone", why: "it was stopped" });
    expect(is_grey()).toBe(true);
    expect(page.text("[role=alert]")).toBe("it was stopped");
    show(2);
    expect(is_grey()).toBe(false);
  });

  it("says when the kernel is silent", () => {
    vi.advanceTimersByTime(9500);
    expect(page.text(".px-pill")).toBe("no answer");
    expect(page.text("[role=alert]")).toContain("no word from the kernel for 9 s");
  });

  it("leaves nothing behind", () => {
    vi.advanceTimersByTime(100); // the animation frame that is due
    page.close();
    expect([page.model.n_listeners, vi.getTimerCount(), page.root.childElementCount]).toEqual([0, 0, 0]);
    expect(page.model.sent.pop()?.["kind"]).toBe("close");
    expect(FakePlot.all.length > 0).toBe(name === "bandwidth");
    expect(FakePlot.all.every((plot) => plot.is_destroyed)).toBe(true);
  });
});
