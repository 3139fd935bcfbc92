// Hosts as boxes and ranks as buttons in them, large or small, with the links between them.

import type { VNode } from "preact";

import { TabStop } from "../shared/dom";
import { age, count, ranges, rate, size } from "../shared/words";
import { Curves, type Box } from "./links";
import { age_s, doing, matches, spoken, STATES, type Frame, type World } from "./state";

interface Props {
  world: World;
  frame: Frame;
  since_frame_s: number;
  is_small: boolean;
  chosen: number;
  query: string;
  boxes: Map<number, Box>; // of the tiles, for the links between them
  marked: number;
  choose: (rank: number) => void;
  mark: (rank: number) => void;
}

export function Tiles(its: Props): VNode {
  const { world, frame, is_small, boxes, marked } = its;
  return (
    <TabStop tag="div" class={is_small ? "px-tiles px-small" : "px-tiles"}>
      <Curves world={world} frame={frame} boxes={boxes} marked={marked} />
      <div class="px-hosts">
        {world.hosts.map((host) => (
          <HostBox key={host.index} host={host} {...its} />
        ))}
      </div>
    </TabStop>
  );
}

function HostBox({ host, ...its }: Props & { host: World["hosts"][number] }): VNode {
  const { world, frame } = its;
  const ranks = world.home.flatMap((home, rank) => (home === host.index ? [rank] : []));
  const here = new Set(ranks);
  const arenas = world.arenas.filter((arena) => arena.some((rank) => here.has(rank)));
  const n_wires = world.tcp.filter(([a, b]) => here.has(a) && here.has(b)).length;
  const wire_bytes = frame.links.reduce((sum, [a, b, bytes]) => sum + (here.has(a) && here.has(b) ? bytes : 0), 0);
  // Links hang below the tiles, so make room there.
  const is_wired = world.tcp.some(([a, b]) => here.has(a) || here.has(b));
  const inside = ["px-inside", arenas.length ? "px-has-arena" : "", is_wired ? "px-wired" : ""];
  const tell = (words: string, bytes: number): string => (bytes ? `${words} · ${rate(bytes)}` : words);
  return (
    <section class="px-host" aria-label={`host ${host.name}`}>
      <header>
        <strong>{host.name}</strong>
        <span class="px-soft">{host.where}</span>
        <span class="px-soft">{host.load}</span>
      </header>
      <div class={inside.filter(Boolean).join(" ")}>
        <div class="px-grid">
          {ranks.map((rank) => (
            <Tile key={rank} rank={rank} host_name={host.name} {...its} />
          ))}
        </div>
        {arenas.map((arena) => (
          <div class="px-arena-name">
            {tell(
              `arena: memory that ranks ${ranges(arena)} share`,
              arena.reduce((sum, rank) => sum + (frame.arena[rank] ?? 0), 0),
            )}
          </div>
        ))}
        {n_wires > 0 && <div class="px-tcp-name">{tell(`tcp: ${count(n_wires, "link")} between these ranks`, wire_bytes)}</div>}
      </div>
    </section>
  );
}

function Tile({ rank, host_name, ...its }: Props & { rank: number; host_name: string }): VNode | null {
  const { frame, since_frame_s, chosen, query, choose, mark } = its;
  const now = frame.ranks[rank];
  if (!now) return null;
  const for_s = now.state === "idle" ? "" : age(age_s(now, frame, since_frame_s));
  const memory = now.state === "dead" || !now.rss ? "" : size(now.rss);
  return (
    <button
      type="button"
      class={matches(query, rank, now, host_name) ? "px-tile" : "px-tile px-elsewhere"}
      data-rank={rank}
      data-state={now.state}
      aria-pressed={rank === chosen}
      aria-label={spoken(rank, now)}
      title={spoken(rank, now)}
      onClick={() => choose(rank)}
      onPointerEnter={() => mark(rank)}
      onFocus={() => mark(rank)}
      onPointerLeave={() => mark(-1)}
      onBlur={() => mark(-1)}
    >
      <span class="px-number">{rank}</span>
      <span class="px-sign" aria-hidden="true">
        {STATES[now.state].sign}
      </span>
      <span class="px-words">{doing(now)}</span>
      <span class="px-foot px-soft">{[for_s, memory].filter(Boolean).join(" · ")}</span>
    </button>
  );
}
