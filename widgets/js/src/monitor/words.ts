// Describes lanes, links and late ranks in words.

import { count, ranges, rate, size } from "../shared/words";
import { STATES } from "../topology/state";
import { end_of, MS, type Frame, type RankNow, type Span } from "./state";

/** Format a duration in three digits: 1.23 ms, 45.6 µs, 7.8 s. */
export function duration(ms: number): string {
  // What rounds to 1000 of a unit is 1 of the next.
  if (ms >= 999.5) return `${Number((ms / 1000).toPrecision(3))} s`;
  if (ms >= 0.9995) return `${Number(ms.toPrecision(3))} ms`;
  return `${Number((ms * 1000).toPrecision(3))} µs`;
}

export function percent(share: number): string {
  return `${Math.round(100 * share)} %`;
}

const with_ranks = (ranks: number[]): string => `${ranks.length === 1 ? "rank" : "ranks"} ${ranges(ranks)}`;

function name(span: Span): string {
  const many = span.count > 1 ? `${span.count} × ` : "";
  const others = span.kinds ? ` and ${count(span.kinds, "other operation")}` : "";
  const seq = span.count === 1 ? ` #${span.seq}` : "";
  const peer = span.peer < 0 ? "" : span.op === "send" ? ` to rank ${span.peer}` : ` from rank ${span.peer}`;
  const group = span.group ? " in a split" : "";
  return `${many}${span.op}${others}${seq}${span.op === "broadcast" || span.peer >= 0 ? peer : ""}${group}`;
}

/** Return the tooltip of a span. */
export function say_span(span: Span, now: number): string {
  const length = end_of(span, now) - span.begun;
  const head = `rank ${span.rank}: ${name(span)}, ${size(span.nbytes)}`;
  const who = span.op === "recv" ? "the sender" : "the last rank";
  if (!span.done) {
    return span.wait < 0
      ? `${head}: waiting for ${who} for ${duration(length)}`
      : `${head}: moving for ${duration(length - span.wait)}, after ${duration(span.wait)} of waiting for ${who}`;
  }
  const failed = span.failure ? `; failed: ${span.failure}` : "";
  if (span.count > 1) {
    const moving = Math.max(0, span.inside - span.wait);
    return `${head} in ${duration(length)}: ${duration(span.wait)} waiting, ${duration(moving)} moving${failed}`;
  }
  if (span.op === "send") return `${head}: ${duration(length)}${failed}`;
  return `${head}: ${duration(length)}, of which ${duration(Math.min(span.wait, length))} waiting for ${who}${failed}`;
}

export const SOON_MS = 500; // a shorter wait is not reported

const say_dead = (frame: Frame): string[] =>
  frame.ranks.flatMap((rank, number) =>
    rank.state === "dead" ? [`rank ${number} is dead${rank.detail ? `: ${rank.detail}` : ""}`] : [],
  );

function say_waits(frame: Frame, say_since: (since: number) => string): string[] {
  return frame.waits
    .filter(([, , , since_ns]) => frame.now - since_ns / MS >= SOON_MS)
    .map(
      ([ranks, missing, what, since_ns]) =>
        `${with_ranks(missing)} ${missing.length === 1 ? "holds" : "hold"} up ${with_ranks(ranks)} in ${what}` +
        say_since(since_ns / MS),
    );
}

/** Name dead ranks and ranks that delay others now, without times: it changes only with the ranks. */
export function say_held_up(frame: Frame): string {
  return [...say_dead(frame), ...say_waits(frame, () => "")].join("; ");
}

/** Name the ranks that delay the others now, or did lately. */
export function say_late(frame: Frame, since_frame_ms: number): string[] {
  const dead = say_dead(frame);
  const now = say_waits(frame, (since) => ` for ${duration(frame.now - since + since_frame_ms)}`);
  return [...dead, ...(now.length ? now : frame.late)];
}

/** Describe a rank's lane in a line, for its label and screen readers. */
export function say_rank(rank: number, now: RankNow): string {
  const state = STATES[now.state];
  const detail = now.detail ? `, ${now.detail}` : "";
  if (now.state === "dead") return `rank ${rank}: dead${detail}`;
  const moved = now.rate.arena + now.rate.sent;
  return (
    `rank ${rank}: ${state.words}${detail}; ${percent(now.rate.share)} of the time in communication, ` +
    `${percent(now.rate.waiting)} waiting for the last rank; ${rate(moved)}`
  );
}

/** Describe lost operations and samples; "" for none. */
export function say_missed(frame: Frame): string {
  const said: string[] = [];
  if (frame.missed) said.push(`${count(frame.missed, "operation")} came and went between two looks`);
  if (frame.dropped) said.push(`${count(frame.dropped, "look")} came too late`);
  return said.length ? `not drawn: ${said.join(", ")}` : "";
}

/** Return the paths with traffic, busiest first, with their share of the busiest. */
export function traffic(frame: Frame, arenas: number[][]): [words: string, rate: number][] {
  const found: [string, number][] = frame.links.map(([a, b, bytes]) => [`rank ${a} → rank ${b}, tcp`, bytes]);
  for (const ranks of arenas) {
    const bytes = ranks.reduce((sum, rank) => sum + (frame.ranks[rank]?.rate.arena ?? 0), 0);
    if (bytes > 0) found.push([`${with_ranks(ranks)}, shared memory`, bytes]);
  }
  return found.sort((one, other) => other[1] - one[1]);
}
