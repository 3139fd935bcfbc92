import { describe, expect, it } from "vitest";
import { links_of } from "../src/topology/link_table";
import { arrows, curve, width_of } from "../src/topology/links";
import { age_s, by_state, facts, matches, moved, death_announcement, peers, say_moved } from "../src/topology/state";
import { make_frame, make_rank, make_world, packed } from "./support/fakes";
import { TopologyPage } from "./support/pages";

const NASTY = "<script>alert(1)</script>";

describe("state", () => {
  const frame = make_frame([make_rank("idle"), make_rank("dead", { detail: "killed" }), make_rank("idle")]);
  it("counts ranks by state", () =>
    expect(by_state(frame)).toEqual([
      ["idle", [0, 2]],
      ["dead", [1]],
    ]));
  it("says who died and who is back", () => {
    const before = make_frame([make_rank("idle"), make_rank("idle"), make_rank("dead")]);
    expect(death_announcement(before, frame)).toBe("rank 1 is dead: killed; rank 2 is back");
    expect(death_announcement(null, frame)).toBe("");
  });
  it("goes on counting between frames, but not for a world that is gone", () => {
    const rank = make_rank("busy");
    expect(age_s(rank, make_frame([rank]), 3)).toBe(15);
    expect(age_s(rank, make_frame([rank], { status: "gone" }), 3)).toBe(12);
  });
  it.each([
    ["", true],
    ["1", true],
    ["41200", true],
    ["rank 1", true],
    ["NODE0", true],
    ["dead", true],
    ["12", false],
    ["idle", false],
  ])("finds %j: %s", (query, is_found) =>
    expect(matches(query, 1, make_rank("dead"), "node0")).toBe(is_found),
  );
  it("knows a rank's peers and says what is known", () => {
    const world = make_world(2, 2);
    expect(peers(world, 2)).toEqual({ arena: [3], tcp: [0] });
    const rows = new Map(facts(world, make_frame(Array(4).fill(make_rank("idle"))), 2, 0));
    expect(rows.get("memory")).toBe("200 MiB");
    expect(rows.get("host")).toBe("node1 (10.0.0.1)");
    expect(rows.has("now")).toBe(false);
  });
});

describe("traffic", () => {
  const links: [number, number, number][] = [
    [0, 1, 118e6],
    [1, 0, 2e3],
  ];
  const frame = make_frame([make_rank("busy"), make_rank("busy")], { links, arena: [2e9, 0] });
  it("is told both ways", () => {
    expect(moved(frame, 1, 0)).toEqual([2e3, 118e6]);
    expect(say_moved(frame, 0, 1)).toBe("rank 0 → rank 1: 118 MB/s; back: 2 kB/s");
    expect(say_moved(frame, 0, 2)).toBe("");
  });
  it("is among what is known of a rank", () => {
    const rows = new Map(facts(make_world(1, 2), frame, 0, 0));
    expect(rows.get("moves over tcp")).toBe("118 MB/s to rank 1");
    expect(rows.get("moves in memory")).toBe("2 GB/s");
    expect(new Map(facts(make_world(1, 2), make_frame(frame.ranks), 0, 0)).has("moves over tcp")).toBe(false);
  });
  it("makes a link wide", () => {
    expect(width_of(1e9, 1e9)).toBe(6);
    expect(width_of(1e6, 1e9)).toBe(1.5);
    expect(width_of(1, 1e9)).toBe(1.5);
  });
});

describe("links", () => {
  const box = (x: number, y: number) => ({ x, y, w: 10, h: 10 });
  it("hang below a row, and go down between rows", () => {
    expect(curve(box(100, 0), box(0, 0)).d).toMatch(/^M105.0 10.0 C.* 5.0 10.0$/);
    expect(curve(box(0, 50), box(20, 0)).d).toMatch(/^M5.0 50.0 C.* 25.0 10.0$/);
  });
  it("have an arrow for each way that something moves", () => {
    const [left, right, below] = [box(0, 0), box(100, 0), box(0, 50)];
    expect(arrows(curve(left, right), true, false)).toBe("M62.0 20.2 L48.0 25.2 L48.0 15.2 Z");
    expect(arrows(curve(right, left), true, false)).toMatch(/^M48.0 20.2 /); // to the left
    expect(arrows(curve(left, right), true, true).match(/M/g)).toHaveLength(2);
    expect(arrows(curve(left, below), true, false)).toMatch(/^M5.0 37.0 /); // down
    expect(arrows(curve(below, left), true, false)).toMatch(/^M5.0 23.0 /);
    expect(arrows(curve(left, right), false, false)).toBe("");
  });
  it("are listed: each arena, and each pair over tcp", () => {
    expect(links_of(make_world(2, 2)).map(({ ranks, path }) => [ranks, path])).toEqual([
      [[0, 1], "shared memory"],
      [[2, 3], "shared memory"],
      [[0, 2], "tcp"],
    ]);
  });
});

describe("measured links", () => {
  const world = {
    ...make_world(2, 2),
    measured: [
      { a: 0, b: 1, state: "ok" as const, words: "1 µs, 9 GB/s" },
      { a: 0, b: 2, state: "slow" as const, words: "slow: 30 µs, 0.1 GB/s; others 1 GB/s" },
    ],
  };
  it("come first in the list if they are slow or broken, and stand with a rank's facts", () => {
    const broken = { a: 2, b: 3, state: "broken" as const, words: "broken" };
    const listed = links_of({ ...world, measured: [...world.measured, broken] });
    expect(listed.map(({ ranks, state, words }) => [ranks, state, words])).toEqual([
      [[2, 3], "broken", "broken"],
      [[0, 2], "slow", world.measured[1]?.words],
      [[0, 1], "ok", "1 µs, 9 GB/s"],
    ]);
    const [inside] = links_of({ ...make_world(1, 3), measured: [{ a: 0, b: 1, state: "slow", words: "slow" }] });
    expect(inside).toMatchObject({ ranks: [0, 1], path: "shared memory", state: "slow" });
    const rows = new Map(facts(world, make_frame(Array(4).fill(make_rank("idle"))), 2, 0));
    expect(rows.get("link to rank 0")).toContain("others 1 GB/s");
    expect(rows.has("link to rank 1")).toBe(false);
  });
});

describe("view", () => {
  let page: TopologyPage;
  const show = (n_hosts: number, per_host: number): void => {
    page = new TopologyPage(make_world(n_hosts, per_host));
  };

  it("shows hosts and ranks in words", () => {
    show(2, 2);
    expect([...page.root.querySelectorAll(".px-host strong")].map((its) => its.textContent)).toEqual(["node0", "node1"]);
    expect(page.tile(3).getAttribute("aria-label")).toBe("rank 3: idle, process 41200");
    expect(page.root.querySelector(".px-count")?.textContent).toBe("● 4 idle");
  });

  it("zooms with buttons and keys, within bounds", () => {
    show(1, 64);
    const stage = page.root.querySelector<HTMLElement>(".px-stage") as HTMLElement;
    const zoom = (): string => stage.style.getPropertyValue("--px-zoom");
    page.button("+").click();
    expect(zoom()).toBe("1.25");
    const press = (key: string): boolean => stage.dispatchEvent(new KeyboardEvent("keydown", { key }));
    press("0");
    expect(zoom()).toBe("1");
    for (let i = 0; i < 9; i++) press("-");
    expect(zoom()).toBe("0.6");
    expect(page.button("−").disabled).toBe(true);
  });

  it("names a death, and keeps the focus while it updates", () => {
    show(1, 3);
    page.tile(1).focus();
    const ranks = [make_rank("idle"), make_rank("idle"), make_rank("dead", { detail: `killed ${NASTY}` })];
    page.put({ frame: make_frame(ranks) });
    expect(page.tile(2).dataset["state"]).toBe("dead");
    expect(page.root.querySelector("[aria-live=assertive]")?.textContent).toContain("rank 2 is dead: killed");
    expect(document.activeElement).toBe(page.tile(1));
    expect(page.root.querySelector("script")).toBeNull();
    expect(page.root.textContent).toContain(NASTY);
  });

  it("names a death also if the world is told of first", () => {
    show(1, 3);
    const ranks = [make_rank("idle"), make_rank("idle"), make_rank("dead", { detail: "killed" })];
    page.model.values.set("frame", packed(make_frame(ranks)));
    page.put({ world: make_world(1, 3) });
    page.model.tell("change:frame");
    expect(page.root.querySelector("[aria-live=assertive]")?.textContent).toContain("rank 2 is dead: killed");
  });

  it("restarts a dead rank at once and a live one after a second press", async () => {
    show(1, 2);
    page.tile(1).click();
    expect(page.model.get("selected")).toBe(1);
    page.button("Restart").click();
    expect(page.model.sent.filter((message) => message["kind"] === "ask")).toEqual([]);
    page.button("Restart: its variables go").click();
    expect(page.model.sent.pop()).toMatchObject({ action: "restart", rank: 1, force: true });
    expect(page.button("Restart").disabled).toBe(true);
    page.put({ frame: make_frame([make_rank("idle"), make_rank("dead")]) });
    page.model.tell("msg:custom", { kind: "answer", id: "another view's", ok: true, text: "no" });
    expect(page.button("Restart").disabled).toBe(true);
  });

  it("asks for a rank's last operations, also of one that is dead", () => {
    show(1, 2);
    page.put({ frame: make_frame([make_rank("idle"), make_rank("dead")]) });
    page.tile(1).click();
    expect(page.button("Where is it?").disabled).toBe(true);
    page.button("Last operations").click();
    expect(page.model.sent.filter((its) => its["kind"] === "ask").pop()).toMatchObject({ action: "operations", rank: 1 });
  });

  it("leaves room for links below the tiles, also where they lead to another host", () => {
    show(2, 1);
    expect(page.root.querySelectorAll(".px-wired").length).toBe(2);
    page.close();
    show(1, 2);
    expect(page.root.querySelectorAll(".px-wired").length).toBe(0);
  });

  it("is small for many ranks, and shows the table of links", () => {
    show(1, 64);
    expect(page.root.querySelector(".px-small")).not.toBeNull();
    expect(page.root.querySelectorAll("button.px-tile").length).toBe(64);
    page.button("Links").click();
    expect(page.root.querySelector(".px-link-table tbody")?.textContent).toContain("shared memory");
    page.button("Tiles").click();
    expect(page.root.querySelector(".px-small")).toBeNull();
  });

  it("shows what moves, in words and on the links, and nothing where nothing does", () => {
    show(2, 2);
    const ranks = Array(4).fill(make_rank("busy"));
    const links: [number, number, number][] = [[0, 2, 5e6]];
    page.put({ frame: make_frame(ranks, { links, arena: [1e6, 1e6, 0, 0] }) });
    const names = (): (string | null)[] =>
      [...page.root.querySelectorAll(".px-arena-name")].map((its) => its.textContent);
    expect(names()).toEqual([
      "arena: memory that ranks 0-1 share · 2 MB/s",
      "arena: memory that ranks 2-3 share",
    ]);
    expect(page.root.querySelector(".px-curves .px-moving title")?.textContent).toBe("rank 0 → rank 2: 5 MB/s; back: 0 B/s");
    page.put({ frame: make_frame(ranks) });
    expect(names()[0]).toBe("arena: memory that ranks 0-1 share");
    expect(page.root.querySelector(".px-moving")).toBeNull();
  });

  it("shows which way a ring goes", () => {
    show(3, 1);
    const ranks = Array(3).fill(make_rank("busy"));
    const links: [number, number, number][] = [[0, 1, 5e6], [1, 0, 2e3], [1, 2, 5e6], [2, 0, 3e3]];
    page.put({ frame: make_frame(ranks, { links }) });
    expect([...page.root.querySelectorAll(".px-arrow")].map((its) => its.getAttribute("d")?.match(/M/g)?.length)).toEqual([1, 1]);
    page.put({ frame: make_frame(ranks, { links, status: "gone" }) });
    page.button("Links").click();
    const moves = (): string => page.root.querySelector(".px-link-table")?.textContent ?? "";
    expect(moves()).toContain("rank 0 → rank 1: 5 MB/s; back: 2 kB/s");
    page.put({ frame: make_frame(ranks) });
    expect(moves()).not.toContain("→");
  });
});
