import { describe, expect, it } from "vitest";
import { colour_of, height_of, rank_at, rows_of } from "../src/monitor/paint";
import {
  cell_at,
  History,
  HISTORY_MS,
  MOST_SPANS,
  panned,
  span_at,
  ticks,
  zoomed,
  type Frame,
  type Gap,
  type SpanRow,
} from "../src/monitor/state";
import { duration, say_late, say_missed, say_rank, say_span, traffic } from "../src/monitor/words";
import { frame, rank, row } from "./support/monitor_frames";

describe("history", () => {
  it("lays what comes into lanes, and an operation that ran into its end", () => {
    const history = new History();
    history.add(frame(1, { spans: [row(1150, 0, { number: 7, wait: -1 }), row(1100, 1120)] }));
    history.add(frame(2, { spans: [row(1150, 1350, { number: 7, wait: 190 }), row(1360, 1370)] }));
    const spans = history.lanes[0]?.spans ?? [];
    expect(spans.map((span) => [span.begun, span.done])).toEqual([
      [1100, 1120],
      [1150, 1350],
      [1360, 1370],
    ]);
    expect([...history.ops]).toEqual(["all_sum"]);
  });
  it("ends what is told no more: it is over, unseen", () => {
    const history = new History();
    const cells: Frame["cells"] = [[0, "a", 1000, 0, -1]];
    history.add(frame(1, { spans: [row(1150, 0, { number: 7, wait: -1 })], cells }));
    const together = row(1150, 1390, { number: 40, count: 34 });
    history.add(frame(2, { spans: [together] }));
    const lane = history.lanes[0];
    expect(lane?.spans.map((span) => [span.number, span.done])).toEqual([[40, 1390]]);
    expect(lane?.cells.map((cell) => cell.done)).toEqual([1400]);
  });
  it("takes no frame twice, nor one that comes late", () => {
    const history = new History();
    history.add(frame(2, { spans: [row(1100, 1120)] }));
    history.add(frame(2, { spans: [row(1100, 1120)], status: "gone", why: "stopped" }));
    history.add(frame(1, { spans: [row(1000, 1010)] }));
    expect(history.lanes[0]?.spans.length).toBe(1);
    expect(history.newest?.status).toBe("gone");
  });
  it("goes on with another supervisor, whose numbers begin anew", () => {
    const history = new History();
    history.add(frame(50));
    history.add(frame(1, { now: 90_000 }));
    expect(history.newest?.number).toBe(1);
  });
  it("begins anew with other ranks, though they be fewer, as many, or of a lower number", () => {
    const history = new History();
    const ranks = Array.from({ length: 16 }, () => rank("busy"));
    history.add(frame(40, { ranks, spans: [row(1100, 1120, { op: "barrier" })], gaps: [[1, 2, "busy"]] }));
    expect(history.lanes.length).toBe(16);
    history.add(frame(0, { ranks: [], world: 1 }));
    expect([history.lanes.length, history.gaps.length, history.ops.size]).toEqual([0, 0, 0]);
    history.add(frame(3, { now: 9000, spans: [row(8900, 8990)], world: 1 }));
    expect(history.lanes.map((lane) => lane.spans.length)).toEqual([1, 0]);
    expect([...history.ops]).toEqual(["all_sum"]);
  });
  it("knows when nothing was seen and why, once, and forgets that, too", () => {
    const history = new History();
    const gap: Gap = [1400, 61_400, "this kernel was busy"];
    history.add(frame(1, { now: 1400 }));
    for (const now of [61_400, 61_400]) history.add(frame(2, { now, gaps: [gap] }));
    expect(history.gaps).toEqual([gap]);
    history.add(frame(3, { now: 61_500 + HISTORY_MS }));
    expect(history.gaps).toEqual([]);
  });
  it("forgets what is old, and never grows without end", () => {
    const history = new History();
    const many = Array.from({ length: MOST_SPANS + 50 }, (_, at) => row(1001 + at / 100, 1001.005 + at / 100));
    history.add(frame(1, { spans: many, cells: [[0, "a", 900, 1100, 3]] }));
    expect(history.lanes[0]?.spans.length).toBe(MOST_SPANS);
    history.add(frame(2, { now: 2000 + HISTORY_MS }));
    expect(history.lanes[0]).toMatchObject({ spans: [], cells: [] });
  });
  it("knows since when a rank is dead, and a cell's end and number when they come", () => {
    const history = new History();
    history.add(frame(1, { cells: [[1, "a", 1100, 0, -1]] }));
    history.add(frame(2, { ranks: [rank("busy"), rank("dead")], cells: [[1, "a", 1100, 1300, 4]] }));
    expect(history.lanes[1]?.states).toEqual([
      [1200, "busy"],
      [1400, "dead"],
    ]);
    expect(history.lanes[1]?.cells).toEqual([{ cell: "a", begun: 1100, done: 1300, number: 4 }]);
  });
});

describe("window", () => {
  const now = 200_000;
  it("zooms about the end while it follows, and about the pointer elsewhere", () => {
    expect(zoomed({ right: null, length: 1000 }, 0.5, now)).toEqual({ right: null, length: 500 });
    expect(zoomed({ right: 100_000, length: 1000 }, 0.5, now, 0.5)).toEqual({ right: 99_750, length: 500 });
    expect(zoomed({ right: null, length: 1000 }, 1e-9, now).length).toBe(1);
    expect(zoomed({ right: null, length: 1000 }, 1e9, now).length).toBe(HISTORY_MS);
  });
  it("moves no further than there is something", () => {
    expect(panned({ right: null, length: 1000 }, -500, now).right).toBe(199_500);
    expect(panned({ right: 199_500, length: 1000 }, 9e9, now).right).toBe(now);
    expect(panned({ right: null, length: 1000 }, -9e9, now).right).toBe(now - HISTORY_MS);
  });
  it("has round times on its axis", () => {
    expect(ticks(0, 10_000, 10_000).map(([, words]) => words)).toEqual([
      "now", "−2 s", "−4 s", "−6 s", "−8 s", "−10 s",
    ]);
    expect(ticks(9_999, 10_000, 10_000)[1]?.[1]).toBe("−0.2 ms");
  });
  it("finds what is pointed at: the shortest, or one that is near", () => {
    const history = new History();
    history.add(frame(1, { spans: [row(1000, 1100), row(1040, 1050)], cells: [[0, "a", 990, 0, 0]] }));
    const lane = history.lanes[0];
    if (!lane) throw new Error("no lane");
    expect(span_at(lane, 1045, 1200, 0)?.begun).toBe(1040);
    expect(span_at(lane, 1060, 1200, 0)?.begun).toBe(1000);
    expect(span_at(lane, 1105, 1200, 0)).toBeNull();
    expect(span_at(lane, 1105, 1200, 6)?.begun).toBe(1000);
    expect(cell_at(lane, 1150, 1200)?.cell).toBe("a");
    expect(cell_at(lane, 900, 1200)).toBeNull();
  });
  it("has room for 64 lanes on a screen", () => {
    expect(height_of(64)).toBeLessThan(900);
    const { lane, gap } = rows_of(4);
    expect(rank_at(lane + gap + 1, 4)).toBe(1);
    expect(rank_at(10_000, 4)).toBe(-1);
  });
});

describe("words", () => {
  const history = new History();
  const said = (its: SpanRow): string => {
    history.reset();
    history.add(frame(5, { spans: [its] }));
    const span = history.lanes[0]?.spans[0];
    return span ? say_span(span, 2000) : "";
  };
  it("tell an operation, its wait and its end", () => {
    expect(said(row(1000, 1066, { wait: 54 }))).toBe(
      "rank 0: all_sum #5, 2 KiB: 66 ms, of which 54 ms waiting for the last rank",
    );
    expect(said(row(1500, 0, { wait: -1 }))).toBe("rank 0: all_sum #5, 2 KiB: waiting for the last rank for 500 ms");
    expect(said(row(1500, 1600, { failure: "died" }))).toContain("; failed: died");
    expect(said(row(1500, 1600, { op: "send", peer: 3 }))).toBe("rank 0: send #5 to rank 3, 2 KiB: 100 ms");
    expect(said(row(1500, 1600, { count: 9, wait: 60 }))).toBe(
      "rank 0: 9 × all_sum, 2 KiB in 100 ms: 60 ms waiting, 40 ms moving",
    );
  });
  it("name who holds the others up now, who did lately, and who is dead", () => {
    const late = ["rank 1 came last to 47 of 80 collectives"];
    expect(say_late(frame(1, { late }), 0)).toEqual(late);
    const waits: Frame["waits"] = [[[0, 1, 3], [2], "all_sum #12", 2e8]];
    expect(say_late(frame(1, { late, waits }), 1000)).toEqual(["rank 2 holds up ranks 0-1,3 in all_sum #12 for 2 s"]);
    const ranks = [rank("busy"), rank("dead", {}, "killed")];
    expect(say_late(frame(1, { ranks }), 0)).toEqual(["rank 1 is dead: killed"]);
    expect(say_late(frame(1, { waits: [[[0], [1], "barrier #1", 1.1e9]] }), 0)).toEqual([]);
  });
  it("say what a rank does, what moves, and what nobody saw", () => {
    expect(say_rank(3, rank("busy", { share: 0.5, waiting: 0.25, arena: 2e9 }))).toBe(
      "rank 3: running; 50 % of the time in communication, 25 % waiting for the last rank; 2 GB/s",
    );
    const ranks = [rank("busy", { arena: 1e6 }), rank("busy", { arena: 1e6 })];
    expect(traffic(frame(1, { ranks, links: [[0, 1, 5e6]] }), [[0, 1]])).toEqual([
      ["rank 0 → rank 1, tcp", 5e6],
      ["ranks 0-1, shared memory", 2e6],
    ]);
    expect(say_missed(frame(1))).toBe("");
    expect(say_missed(frame(1, { missed: 3, dropped: 1 }))).toBe(
      "not drawn: 3 operations came and went between two looks, 1 look came too late",
    );
    expect([0.0456, 0.9996, 12, 999.6, 1234].map(duration)).toEqual(["45.6 µs", "1 ms", "12 ms", "1 s", "1.23 s"]);
  });
  it("give each operation a colour of its own, the same everywhere", () => {
    const ops = ["all_sum", "all_max", "all_min", "barrier", "send", "recv"];
    expect(new Set(ops.map(colour_of)).size).toBe(ops.length);
    expect(colour_of("all_sum")).toBe("op-all-sum");
  });
});
