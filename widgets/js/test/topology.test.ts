import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import topology from "../src/topology";
import { links_of } from "../src/topology/link_table";
import { arrows, curve, width_of } from "../src/topology/links";
import { age_s, by_state, facts, load, matches, moved, death_announcement, peers, say_moved } from "../src/topology/state";
import { FakeModel, make_frame, make_rank, make_world, nodes_of, packed } from "./support/fakes";

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
  it("says when ranks outnumber cores", () => {
    expect(load(2, 2)).toBe("2 ranks on 2 cores");
    expect(load(2, 5)).toBe("5 ranks on 2 cores: 2.5 to each, they take turns");
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
    expect(curve(box(100, 0), box(0, 0))).toMatch(/^M5.0 10.0 C.* 105.0 10.0$/);
    expect(curve(box(0, 50), box(20, 0))).toMatch(/^M25.0 10.0 C.* 5.0 50.0$/);
  });
  it("have an arrow for each way that something moves", () => {
    const [left, right, below] = [box(0, 0), box(100, 0), box(0, 50)];
    expect(arrows(left, right, true, false)).toBe("M62.0 20.2 L48.0 25.2 L48.0 15.2 Z");
    expect(arrows(right, left, true, false)).toMatch(/^M48.0 20.2 /); // to the left
    expect(arrows(left, right, true, true).match(/M/g)).toHaveLength(2);
    expect(arrows(left, below, true, false)).toMatch(/^M5.0 37.0 /); // down
    expect(arrows(below, left, true, false)).toMatch(/^M5.0 23.0 /);
    expect(arrows(left, right, false, false)).toBe("");
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
  let model: FakeModel;
  let root: HTMLElement;
  let close: () => void = () => undefined;

  const show = (n_hosts: number, per_host: number): void => {
    model = new FakeModel();
    root = document.body.appendChild(document.createElement("div"));
    model.values.set("selected", -1);
    model.values.set("mode", "");
    model.values.set("world", packed(make_world(n_hosts, per_host)));
    model.values.set("frame", packed(make_frame(Array(n_hosts * per_host).fill(make_rank("idle")))));
    close = topology.render({ model, el: root });
  };
  const tile = (rank: number): HTMLButtonElement =>
    root.querySelectorAll<HTMLButtonElement>("button.px-tile")[rank] as HTMLButtonElement;
  const button = (words: string): HTMLButtonElement =>
    [...root.querySelectorAll("button")].find((its) => its.textContent === words) as HTMLButtonElement;
  const settle = (): Promise<void> => Promise.resolve();

  afterEach(() => close()); // its timers would outlive the page
  beforeEach(() => document.body.replaceChildren());

  it("shows hosts and ranks in words", () => {
    show(2, 2);
    expect([...root.querySelectorAll(".px-host strong")].map((its) => its.textContent)).toEqual(["node0", "node1"]);
    expect(tile(3).getAttribute("aria-label")).toBe("rank 3: idle, process 41200");
    expect(root.querySelector(".px-count")?.textContent).toBe("● 4 idle");
  });

  it("keeps every node of the page while frames change the words", () => {
    show(2, 2);
    tile(0).click();
    const tell = (frame: number): void => {
      const ranks = Array.from({ length: 4 }, (_, at) => make_rank("busy", { rss: (frame + at) << 20, last: `${frame}` }));
      model.set("frame", packed(make_frame(ranks, { now: 1012 + frame })));
    };
    tell(1);
    const before = [...nodes_of(root)];
    const words = root.textContent;
    for (let frame = 2; frame <= 101; frame++) tell(frame);
    expect(root.textContent).not.toBe(words);
    expect([...nodes_of(root)].filter((its, at) => its !== before[at])).toEqual([]);
  });

  it("measures links when asked, and says what came of it as text", async () => {
    show(2, 2);
    button("Links").click();
    button("Measure the links").click();
    expect(model.sent[model.sent.length - 1]).toMatchObject({ kind: "ask", action: "links" });
    expect(button("Measure the links").disabled).toBe(true);
    model.answer(true, `6 links measured\nrank 0 - rank 2: slow ${NASTY}`);
    await settle();
    expect(root.querySelector(".px-measured")?.textContent).toContain(`slow ${NASTY}`);
    expect(root.querySelector("script")).toBeNull();
    expect(button("Measure the links").disabled).toBe(false);
  });

  it("zooms with buttons and keys, within bounds", () => {
    show(1, 64);
    const stage = root.querySelector<HTMLElement>(".px-stage") as HTMLElement;
    const zoom = (): string => stage.style.getPropertyValue("--px-zoom");
    button("+").click();
    expect(zoom()).toBe("1.25");
    const press = (key: string): boolean => stage.dispatchEvent(new KeyboardEvent("keydown", { key }));
    press("0");
    expect(zoom()).toBe("1");
    for (let i = 0; i < 9; i++) press("-");
    expect(zoom()).toBe("0.6");
    expect(button("−").disabled).toBe(true);
  });

  it("names a death, and keeps the focus while it updates", () => {
    show(1, 3);
    tile(1).focus();
    const ranks = [make_rank("idle"), make_rank("idle"), make_rank("dead", { detail: `killed ${NASTY}` })];
    model.set("frame", packed(make_frame(ranks)));
    expect(tile(2).dataset["state"]).toBe("dead");
    expect(root.querySelector("[aria-live=assertive]")?.textContent).toContain("rank 2 is dead: killed");
    expect(document.activeElement).toBe(tile(1));
    expect(root.querySelector("script")).toBeNull();
    expect(root.textContent).toContain(NASTY);
  });

  it("names a death also if the world is told of first", () => {
    show(1, 3);
    const ranks = [make_rank("idle"), make_rank("idle"), make_rank("dead", { detail: "killed" })];
    model.values.set("frame", packed(make_frame(ranks)));
    model.set("world", packed(make_world(1, 3)));
    model.tell("change:frame");
    expect(root.querySelector("[aria-live=assertive]")?.textContent).toContain("rank 2 is dead: killed");
  });

  it("restarts a dead rank at once and a live one after a second press", async () => {
    show(1, 2);
    tile(1).click();
    expect(model.get("selected")).toBe(1);
    button("Restart").click();
    expect(model.sent.filter((message) => message["kind"] === "ask")).toEqual([]);
    button("Restart: its variables go").click();
    expect(model.sent.pop()).toMatchObject({ action: "restart", rank: 1, force: true });
    expect(button("Restart").disabled).toBe(true);
    model.set("frame", packed(make_frame([make_rank("idle"), make_rank("dead")])));
    model.tell("msg:custom", { kind: "answer", id: "another view's", ok: true, text: "no" });
    expect(button("Restart").disabled).toBe(true);
  });

  it("shows an answer as text", async () => {
    show(1, 2);
    tile(0).click();
    button("Where is it?").click();
    model.answer(false, NASTY);
    await settle();
    await settle();
    const said = root.querySelector("pre") as HTMLElement;
    expect(said.textContent).toBe(NASTY);
    expect(said.children.length).toBe(0);
    expect(said.classList.contains("px-failed")).toBe(true);
  });

  it("goes grey with the reason, and comes back", () => {
    show(1, 2);
    const ranks = [make_rank("idle"), make_rank("idle")];
    model.set("frame", packed(make_frame(ranks, { status: "gone", why: "it was stopped" })));
    expect(root.classList.contains("px-grey")).toBe(true);
    expect(root.querySelector(".px-why")?.textContent).toBe("it was stopped");
    model.set("frame", packed(make_frame(ranks)));
    expect(root.classList.contains("px-grey")).toBe(false);
  });

  it("says when the kernel is silent", () => {
    vi.useFakeTimers();
    show(1, 2);
    vi.advanceTimersByTime(9500);
    expect(root.querySelector(".px-why")?.textContent).toContain("no word from the kernel for 9 s");
    vi.useRealTimers();
  });

  it("asks for a rank's last operations, also of one that is dead", () => {
    show(1, 2);
    model.set("frame", packed(make_frame([make_rank("idle"), make_rank("dead")])));
    tile(1).click();
    expect(button("Where is it?").disabled).toBe(true);
    button("Last operations").click();
    expect(model.sent.filter((its) => its["kind"] === "ask").pop()).toMatchObject({ action: "operations", rank: 1 });
  });

  it("leaves room for links below the tiles, also where they lead to another host", () => {
    show(2, 1);
    expect(root.querySelectorAll(".px-wired").length).toBe(2);
    close();
    show(1, 2);
    expect(root.querySelectorAll(".px-wired").length).toBe(0);
  });

  it("is small for many ranks, and shows the table of links", () => {
    show(1, 64);
    expect(root.querySelector(".px-small")).not.toBeNull();
    expect(root.querySelectorAll("button.px-tile").length).toBe(64);
    button("Links").click();
    expect(root.querySelector(".px-link-table tbody")?.textContent).toContain("shared memory");
    button("Tiles").click();
    expect(root.querySelector(".px-small")).toBeNull();
  });

  it("is walked with the keyboard", () => {
    show(1, 4);
    tile(0).focus();
    tile(0).dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    expect(document.activeElement).toBe(tile(1));
    tile(1).dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true }));
    expect(document.activeElement).toBe(tile(3));
    expect([...root.querySelectorAll("button.px-tile[tabindex='0']")]).toEqual([tile(3)]);
  });

  it("shows what moves, in words and on the links, and nothing where nothing does", () => {
    show(2, 2);
    const ranks = Array(4).fill(make_rank("busy"));
    const links: [number, number, number][] = [[0, 2, 5e6]];
    model.set("frame", packed(make_frame(ranks, { links, arena: [1e6, 1e6, 0, 0] })));
    const names = (): (string | null)[] =>
      [...root.querySelectorAll(".px-arena-name")].map((its) => its.textContent);
    expect(names()).toEqual([
      "arena: memory that ranks 0-1 share · 2 MB/s",
      "arena: memory that ranks 2-3 share",
    ]);
    expect(root.querySelector(".px-curves .px-moving title")?.textContent).toBe("rank 0 → rank 2: 5 MB/s; back: 0 B/s");
    model.set("frame", packed(make_frame(ranks)));
    expect(names()[0]).toBe("arena: memory that ranks 0-1 share");
    expect(root.querySelector(".px-moving")).toBeNull();
  });

  it("shows which way a ring goes", () => {
    show(3, 1);
    const ranks = Array(3).fill(make_rank("busy"));
    const links: [number, number, number][] = [[0, 1, 5e6], [1, 0, 2e3], [1, 2, 5e6], [2, 0, 3e3]];
    model.set("frame", packed(make_frame(ranks, { links })));
    expect([...root.querySelectorAll(".px-arrow")].map((its) => its.getAttribute("d")?.match(/M/g)?.length)).toEqual([1, 1]);
    model.set("frame", packed(make_frame(ranks, { links, status: "gone" })));
    button("Links").click();
    const moves = (): string => root.querySelector(".px-link-table")?.textContent ?? "";
    expect(moves()).toContain("rank 0 → rank 1: 5 MB/s; back: 2 kB/s");
    model.set("frame", packed(make_frame(ranks)));
    expect(moves()).not.toContain("→");
  });

  it("leaves nothing behind", () => {
    show(1, 4);
    close();
    expect(model.n_listeners).toBe(0);
    expect(root.children.length).toBe(0);
    expect(model.sent.pop()?.["kind"]).toBe("close");
  });
});
