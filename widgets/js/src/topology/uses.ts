// Describes the algorithms in use: name, message sizes and meaning.

import { el, set_attributes, set_text } from "../shared/dom";
import { size } from "../shared/words";
import type { Frame, Use, World } from "./state";

const MOST = 10; // lines; more are counted
const MOST_NAMES = 6; // of a ring; with more, only the ends are named

// Meaning of each algorithm on a host and between hosts; names as in `px.trace`.
const MEANING: Record<string, string> = {
  inline: "in shared memory, along with the call",
  staged: "in shared memory, each rank works on its share",
  mesh: "everyone sends to everyone, one step",
  direct: "slices to everyone, their sums back, two steps",
  ring: "each passes on to the next, all the way around",
  chain: "each passes on to the next, from the root on",
  pairwise: "each pair on its own link",
  queue: "in shared memory",
  wire: "over tcp",
  copy: "nothing has to move",
};

/** Return the members of a ring in order: ranks, or hosts if ranks of a host act together. */
function stations(world: World): string[] {
  const first = (ranks: number[]): number => Math.min(...ranks);
  const together = world.arenas.filter((ranks) => ranks.length > 1);
  const alone = world.home.flatMap((_, rank) => (together.some((ranks) => ranks.includes(rank)) ? [] : [[rank]]));
  const nodes = [...together, ...alone].sort((one, other) => first(one) - first(other));
  const host = (rank: number): string => world.hosts.find((its) => its.index === world.home[rank])?.name ?? "";
  const are_hosts = together.length > 0 && new Set(nodes.map((ranks) => host(first(ranks)))).size === nodes.length;
  return nodes.map((ranks) => (are_hosts ? host(first(ranks)) : String(first(ranks))));
}

function around(world: World): string {
  const names = stations(world);
  const shown = names.length > MOST_NAMES ? [...names.slice(0, 2), "…", names[names.length - 1] ?? ""] : names;
  return [...shown, names[0] ?? ""].join(" → ");
}

function how(part: string, world: World, is_split: boolean): string {
  const meaning = MEANING[part] ?? "";
  const way = part === "ring" && !is_split ? `: ${around(world)}` : "";
  return meaning ? `${part} (${meaning}${way})` : part;
}

/** Describe one use: `all_sum of 1 MiB – 4 MiB: ring (...)`. */
export function say_use([op, algorithm, low, high, is_split, is_now]: Use, world: World): string {
  const sizes = !high ? "" : low === high ? ` of ${size(high)}` : ` of ${size(low)} to ${size(high)}`;
  const parts = algorithm.split("+");
  const ways = parts.map((part) => how(part, world, is_split));
  const said = parts.length > 1 ? `${ways[0]} on each host, between hosts ${ways.slice(1).join(", ")}` : ways[0];
  return `${op}${is_split ? " in a split" : ""}${sizes}: ${said}${is_now ? "" : " – earlier"}`;
}

/** The list of uses below the ranks; current uses come first. */
export class Uses {
  private readonly list = el("ul");
  readonly element = el(
    "section",
    { class: "px-uses", "aria-label": "algorithms in use", hidden: true },
    el("h3", {}, "in use"),
    this.list,
  );
  private shown = "";

  show(world: World, frame: Frame, is_live: boolean): void {
    // Without live data, no use counts as current.
    const known = is_live ? frame.uses : frame.uses.map((use): Use => [use[0], use[1], use[2], use[3], use[4], false]);
    const uses = [...known].sort((one, other) => Number(other[5]) - Number(one[5]));
    const lines = uses.slice(0, MOST).map((use) => say_use(use, world));
    if (uses.length > lines.length) lines.push(`and ${uses.length - lines.length} more`);
    this.element.hidden = lines.length === 0;
    if (lines.join("\n") === this.shown) return;
    this.shown = lines.join("\n");
    while (this.list.children.length > lines.length) this.list.lastElementChild?.remove();
    lines.forEach((words, at) => {
      const item = this.list.children[at] ?? this.list.appendChild(el("li"));
      set_text(item, words);
      set_attributes(item, { class: uses[at]?.[5] ? "px-now" : "px-soft" });
    });
  }
}
