// The table of links: a row for each arena and for each pair of ranks; slow and broken links come first.

import { el, set_attributes, set_text, TabStop } from "../shared/dom";
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

interface Row {
  link: Link;
  line: HTMLTableRowElement;
  buttons: HTMLButtonElement[];
  cells: HTMLTableCellElement[]; // path, measurement, traffic
}

export class LinkTable {
  private readonly body = el("tbody");
  private readonly table = el("table", {}, el("thead", {}, el("tr")), this.body);
  readonly element = el("div", { class: "px-link-table" }, this.table);
  private readonly stop = new TabStop(this.body, () => this.shown);
  private rows = new Map<string, Row>();
  private world: World | null = null;

  constructor(private readonly on_choose: (rank: number) => void) {
    const heads = ["ranks", "path", "measured", "moves now"].map((words) => el("th", { scope: "col" }, words));
    this.table.tHead?.rows[0]?.append(...heads);
  }

  /** Show a world; the rank that has the focus keeps it. */
  show(world: World): void {
    const focused = this.element.contains(document.activeElement) ? (document.activeElement as HTMLElement) : null;
    this.world = world;
    const rows = links_of(world).map((link): [string, Row] => {
      const key = String(link.ranks);
      return [key, Object.assign(this.rows.get(key) ?? this.make(link), { link })];
    });
    this.rows = new Map(rows);
    for (const [, { link, line, cells }] of rows) {
      set_attributes(line, { "data-link": link.state });
      set_text(cells[0] as Element, link.path);
      set_text(cells[1] as Element, link.words);
    }
    set_attributes(this.table, { "aria-label": `links between ${world.home.length} ranks` });
    this.body.replaceChildren(...rows.map(([, { line }]) => line));
    this.keep_tab_stop();
    if (focused) (focused.isConnected ? focused : this.stop.button)?.focus();
  }

  /** Show the traffic, the chosen rank, and the links that were searched for by a rank or by their own words. */
  update(frame: Frame, chosen: number, query: string): void {
    const { world } = this;
    if (!world) return;
    const wanted = query.trim().toLowerCase();
    const is_found = frame.ranks.map((rank, number) => matches(query, number, rank, host_of(world, number)));
    for (const { link, line, buttons, cells } of this.rows.values()) {
      // A number is that of a rank or process: it may also be a part of what was measured.
      const is_named = !/^\d*$/.test(wanted) && `${link.path} ${link.words}`.toLowerCase().includes(wanted);
      line.hidden = !is_named && !link.ranks.some((rank) => is_found[rank]);
      set_text(cells[2] as Element, link.traffic(frame));
      link.ranks.forEach((rank, at) => set_attributes(buttons[at] as Element, { "aria-pressed": String(rank === chosen) }));
    }
    this.keep_tab_stop();
  }

  focus(): void {
    this.stop.button?.focus();
  }

  private make(link: Link): Row {
    const buttons = link.ranks.map((rank) => {
      const button = el("button", { type: "button", tabindex: -1, "aria-label": `rank ${rank}` }, String(rank));
      button.addEventListener("click", () => this.on_choose(rank));
      return button;
    });
    const cells = [el("td"), el("td"), el("td")];
    return { link, line: el("tr", {}, el("th", { scope: "row" }, ...buttons), ...cells), buttons, cells };
  }

  /** The buttons of the rows that are not hidden. */
  private get shown(): HTMLButtonElement[][] {
    return [...this.body.rows].filter((line) => !line.hidden).map((line) => [...line.querySelectorAll("button")]);
  }

  /** Have a tab stop: the last with the focus, or the first that is shown. */
  private keep_tab_stop(): void {
    if (this.stop.button?.closest("tr")?.hidden !== false) this.stop.set(this.shown[0]?.[0]);
  }
}
