// Made-up frames of the monitor.
import { MS, type Frame, type RankNow, type SpanRow } from "../../src/monitor/state";
import type { State } from "../../src/topology/state";

export function rank(state: State, more: Partial<RankNow["rate"]> = {}, detail = ""): RankNow {
  const rate = { share: 0, waiting: 0, arena: 0, sent: 0, ...more };
  return { state, detail, pid: 41200, rate };
}

export function frame(number: number, more: Partial<Frame> = {}): Frame {
  return {
    status: "live",
    why: "",
    number,
    now: 1000 + 200 * number,
    epoch: 1,
    ranks: [rank("busy"), rank("busy")],
    spans: [],
    cells: [],
    links: [],
    late: [],
    waits: [],
    missed: 0,
    dropped: 0,
    gaps: [],
    world: 0,
    ...more,
  };
}

export interface Some {
  rank?: number;
  number?: number;
  op?: string;
  wait?: number;
  count?: number;
  failure?: string;
  peer?: number;
}

export function row(begun: number, done: number, more: Some = {}): SpanRow {
  const { rank = 0, number = begun, op = "all_sum", wait = 1, count = 1, failure = "", peer = -1 } = more;
  const [begun_ns, done_ns, inside_ns, wait_ns] = [begun * MS, done * MS, (done - begun) * MS, wait < 0 ? -1 : wait * MS];
  return [rank, [number, op, begun_ns, done_ns, inside_ns, wait_ns, 2048, 5, 0, peer, count, 0, failure]];
}
