// The table of links: a row for each arena and for each pair of ranks; slow and broken links come first.

import type { VNode } from "preact";

import { TabStop } from "../shared/dom";
import { rate } from "../shared/words";
import { host_of, matches, say_moved, type Frame, type MeasuredLink, type World } from "./state";

export interface Link {
  ranks: number[];
  path: "tcp" | "shared memory";
  state: MeasuredLink["state"];
  words: string; // what was measured of a pair
  traffic: (frame: Frame) => string;
}

const ORDER = ["broken", "slow", "ok"];

/** Return the arenas and pairs in the order of the table. A pair in an arena has a link of its own once it is measured. */
export function links_of(world: World): Link[] {
  const found = new Map<string, Link>();
  const put = (ranks: number[], path: Link["path"], traffic: Link["traffic"]): Link => {
    const link: Link = { ranks, path, state: "ok", words: "", traffic };
    found.set(String(ranks), link);
    return link;
  };
  for (const ranks of world.arenas) {
    put(ranks, "shared memory", (frame) => {
      const bytes = ranks.reduce((sum, rank) => sum + (frame.arena[rank] ?? 0), 0);
      return bytes ? rate(bytes) : "";
    });
  }
  for (const [a, b] of world.tcp) put([a, b], "tcp", (frame) => say_moved(frame, a, b));
  for (const { a, b, state, words } of world.measured ?? []) {
    Object.assign(found.get(`${a},${b}`) ?? put([a, b], "shared memory", () => ""), { state, words });
  }
  return [...found.values()].sort((one, other) => ORDER.indexOf(one.state) - ORDER.indexOf(other.state));
}

interface Props {
  world: World;
  links: Link[];
  frame: Frame;
  chosen: number;
  query: string;
  choose: (rank: number) => void;
}

/** The links that were searched for by a rank or by their own words, with their traffic. */
export function LinkTable({ world, links, frame, chosen, query, choose }: Props): VNode {
  const wanted = query.trim().toLowerCase();
  const is_found = frame.ranks.map((rank, number) => matches(query, number, rank, host_of(world, number)));
  // A number is that of a rank or process: it may also be a part of what was measured.
  const is_name = !/^\d*$/.test(wanted);
  const is_named = ({ path, words }: Link): boolean => is_name && `${path} ${words}`.toLowerCase().includes(wanted);
  const shown = links.filter((link) => is_named(link) || link.ranks.some((rank) => is_found[rank]));
  return (
    <div class="px-link-table">
      <table aria-label={`links between ${world.home.length} ranks`}>
        <thead>
          <tr>
            {["ranks", "path", "measured", "moves now"].map((words) => (
              <th scope="col">{words}</th>
            ))}
          </tr>
        </thead>
        <TabStop tag="tbody">
          {shown.map((link) => (
            <tr key={String(link.ranks)} data-link={link.state}>
              <th scope="row">
                {link.ranks.map((rank) => (
                  <button
                    type="button"
                    data-rank={rank}
                    aria-label={`rank ${rank}`}
                    aria-pressed={rank === chosen}
                    onClick={() => choose(rank)}
                  >
                    {rank}
                  </button>
                ))}
              </th>
              <td>{link.path}</td>
              <td>{link.words}</td>
              <td>{link.traffic(frame)}</td>
            </tr>
          ))}
        </TabStop>
      </table>
    </div>
  );
}
