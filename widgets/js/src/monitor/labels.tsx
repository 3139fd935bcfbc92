// The labels beside the lanes: a button for each rank, with its state in words.

import type { VNode } from "preact";

import { TabStop } from "../shared/dom";
import { rate } from "../shared/words";
import { STATES } from "../topology/state";
import { rows_of } from "./paint";
import type { Frame } from "./state";
import { percent, say_rank } from "./words";

interface Props {
  frame: Frame;
  chosen: number;
  choose: (rank: number) => void;
}

export function Labels({ frame, chosen, choose }: Props): VNode {
  const { lane, gap } = rows_of(frame.ranks.length);
  const is_small = lane < 15;
  return (
    <TabStop
      tag="div"
      class={is_small ? "px-labels px-small" : "px-labels"}
      role="group"
      aria-label="ranks"
      style={{ gap: `${gap}px` }}
    >
      {frame.ranks.map((now, rank) => {
        const is_dead = now.state === "dead";
        const moved = is_dead ? 0 : now.rate.arena + now.rate.sent;
        return (
          <button
            type="button"
            style={{ height: `${lane}px` }}
            data-rank={rank}
            data-state={now.state}
            aria-pressed={rank === chosen}
            aria-label={say_rank(rank, now)}
            title={say_rank(rank, now)}
            onClick={() => choose(rank)}
          >
            <span class="px-number">{rank}</span>
            <span class="px-sign" aria-hidden="true">
              {STATES[now.state].sign}
            </span>
            <span class="px-words px-soft">
              <span class="px-share">{is_dead ? "dead" : percent(now.rate.share)}</span>
              <span>{is_dead || is_small ? "" : " comm."}</span>
              <span class="px-rate">{moved ? ` · ${rate(moved)}` : ""}</span>
            </span>
          </button>
        );
      })}
    </TabStop>
  );
}
