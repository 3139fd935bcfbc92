// The kernel's records of a world, and the data that a view derives from them.

import type { LinkRate, Status } from "../shared/model";
import { age, count, ranges, rate, size } from "../shared/words";

export type State = "planned" | "starting" | "idle" | "busy" | "collective" | "input" | "dead";

/** The fixed part of a world. */
export interface World {
  name: string;
  hosts: { index: number; name: string; where: string; load: string }[];
  home: number[]; // host index, by rank
  arenas: number[][];
  tcp: [number, number][];
  measured?: MeasuredLink[]; // absent before the first measurement
}

/** A measured link: `words` have its latency, bandwidth and problem. */
export interface MeasuredLink {
  a: number;
  b: number;
  state: "ok" | "slow" | "broken";
  words: string;
}

export interface RankNow {
  state: State;
  since: number; // seconds on the kernel's clock
  pid: number;
  rss: number; // bytes; 0: unknown
  detail: string;
  last: string; // the operation before this, or the last one
}

export interface Frame extends Status {
  epoch: number;
  now: number;
  ranks: RankNow[];
  links: LinkRate[];
  arena: number[]; // bytes per second of each rank
  measuring: string; // progress of a link measurement; "" for none
  rates?: Map<number, number>; // `links` by their ranks, as drawing 2016 links would search them 2016 times
}

/** Return the name of a rank's host. */
export function host_of(world: World, number: number): string {
  return world.hosts.find((its) => its.index === world.home[number])?.name ?? "";
}

const MOST_RANKS = 1 << 16;

/** Return the rates between two ranks over tcp, there and back. */
export function moved(frame: Frame, a: number, b: number): [there: number, back: number] {
  frame.rates ??= new Map(frame.links.map(([source, target, bytes]) => [source * MOST_RANKS + target, bytes]));
  return [frame.rates.get(a * MOST_RANKS + b) ?? 0, frame.rates.get(b * MOST_RANKS + a) ?? 0];
}

/** Return the rate of the busiest tcp link; 1 without traffic. */
export function busiest(frame: Frame): number {
  return frame.links.reduce((most, [, , bytes]) => Math.max(most, bytes), 1);
}

/** Describe the traffic of a tcp link; "" without traffic. */
export function say_moved(frame: Frame, a: number, b: number): string {
  const [there, back] = moved(frame, a, b);
  if (!there && !back) return "";
  return `rank ${a} → rank ${b}: ${rate(there)}; back: ${rate(back)}`;
}

export const STATES: Record<State, { sign: string; words: string }> = {
  planned: { sign: "○", words: "planned" },
  starting: { sign: "…", words: "starting" },
  idle: { sign: "●", words: "idle" },
  busy: { sign: "▶", words: "running" },
  collective: { sign: "⇄", words: "in a collective" },
  input: { sign: "?", words: "waiting for input" },
  dead: { sign: "✕", words: "dead" },
};
export const STATE_NAMES = Object.keys(STATES) as State[];

/** With more ranks than this, tiles are small unless a person enlarges them. */
export const MANY = 16;

/** Group ranks by state, in the order of `STATE_NAMES`; skip states without ranks. */
export function by_state(frame: Frame): [State, number[]][] {
  const found = STATE_NAMES.map((state): [State, number[]] => [
    state,
    frame.ranks.flatMap((rank, number) => (rank.state === state ? [number] : [])),
  ]);
  return found.filter(([, ranks]) => ranks.length > 0);
}

export function headline(world: World, frame: Frame): string {
  return `${count(world.home.length, "rank")} on ${count(world.hosts.length, "host")} · epoch ${frame.epoch}`;
}

/** Return the seconds since a rank's state began, on the kernel's clock. */
export function age_s(rank: RankNow, frame: Frame, since_frame_s: number): number {
  return frame.now + (frame.status === "gone" ? 0 : since_frame_s) - rank.since;
}

/** Describe a rank's state in a line, beside its colour. */
export function doing(rank: RankNow): string {
  return rank.detail || STATES[rank.state].words;
}

/** Describe a tile in full, for screen readers. */
export function spoken(number: number, rank: RankNow): string {
  const state = STATES[rank.state].words;
  const detail = rank.detail && rank.detail !== state ? `, ${rank.detail}` : "";
  return `rank ${number}: ${state}${detail}, process ${rank.pid}`;
}

/** Whether a rank matches a search text. */
export function matches(query: string, number: number, rank: RankNow, host: string): boolean {
  const wanted = query.trim().toLowerCase();
  if (!wanted) return true;
  if (/^\d+$/.test(wanted)) return String(number) === wanted || String(rank.pid) === wanted;
  const said = `rank ${number} ${host} ${STATES[rank.state].words} ${rank.detail}`;
  return said.toLowerCase().includes(wanted);
}

/** Return the peers of a rank, by shared memory and by tcp. */
export function peers(world: World, number: number): { arena: number[]; tcp: number[] } {
  const arena = world.arenas.filter((ranks) => ranks.includes(number)).flat();
  const tcp = world.tcp.flatMap(([a, b]) => (a === number ? [b] : b === number ? [a] : []));
  return { arena: arena.filter((rank) => rank !== number), tcp };
}

/** Return facts about a rank for the panel: name and value. */
export function facts(
  world: World,
  frame: Frame,
  number: number,
  since_frame_s: number,
): [string, string][] {
  const rank = frame.ranks[number];
  if (!rank) return [];
  const host = world.hosts.find((its) => its.index === world.home[number]);
  const { arena, tcp } = peers(world, number);
  const state = STATES[rank.state];
  const odd = (world.measured ?? []).filter((link) => link.state !== "ok" && [link.a, link.b].includes(number));
  const rows: [string, string][] = [
    ["state", `${state.sign} ${state.words} for ${age(age_s(rank, frame, since_frame_s))}`],
    ["now", rank.detail],
    ["last operation", rank.last],
    ["host", host ? `${host.name} (${host.where})` : ""],
    ["process", rank.state === "dead" ? `${rank.pid} (gone)` : String(rank.pid)],
    ["memory", rank.rss ? size(rank.rss) : ""],
    ["shares memory with", arena.length ? `rank${arena.length > 1 ? "s" : ""} ${ranges(arena)}` : ""],
    ["moves in memory", frame.arena[number] ? rate(frame.arena[number] ?? 0) : ""],
    [
      "moves over tcp",
      frame.links
        .filter(([source]) => source === number)
        .sort((one, other) => other[2] - one[2])
        .slice(0, 4)
        .map(([, target, bytes]) => `${rate(bytes)} to rank ${target}`)
        .join(", "),
    ],
    ["tcp to", tcp.length ? `rank${tcp.length > 1 ? "s" : ""} ${ranges(tcp)}` : ""],
    ...odd.map((link): [string, string] => [`link to rank ${link.a === number ? link.b : link.a}`, link.words]),
  ];
  return rows.filter(([, words]) => words !== "");
}

/** Name the ranks that died since an earlier frame; "" for none. */
export function death_announcement(before: Frame | null, now: Frame): string {
  const said = now.ranks.flatMap((rank, number) => {
    const then = before?.ranks[number];
    if (!then || then.state === rank.state) return [];
    if (rank.state === "dead") return [`rank ${number} is dead: ${rank.detail}`];
    return then.state === "dead" ? [`rank ${number} is back`] : [];
  });
  return said.join("; ");
}
