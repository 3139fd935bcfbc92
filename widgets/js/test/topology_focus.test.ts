// The keyboard user's place and focus survive each redraw of the topology.
import { describe, expect, it } from "vitest";
import type { MeasuredLink, World } from "../src/topology/state";
import { make_frame, make_rank, make_world } from "./support/fakes";
import { TopologyPage } from "./support/pages";

const broken = (a: number, b: number): MeasuredLink => ({
  a,
  b,
  state: "broken",
  words: `broken: rank ${b} is dead`,
});

describe("the focus", () => {
  let page: TopologyPage;
  const zoom = (): string =>
    (page.root.querySelector(".px-stage") as HTMLElement).style.getPropertyValue("--px-zoom");
  /** Rank 2 dies: as the kernel sends it, the frame first. */
  const die = (world: World): void => {
    const states = world.home.map((_, rank) => make_rank(rank === 2 ? "dead" : "idle"));
    page.put({ frame: make_frame(states) });
    page.put({ world: { ...world, measured: [broken(0, 2), broken(1, 2)] } });
  };

  it("stays on a tile that is zoomed, so that each key is heard", () => {
    page = new TopologyPage(make_world(1, 3));
    page.tile(1).focus();
    const tile = page.tile(1);
    page.press(["+", "+", "-", "+"]);
    expect(zoom()).toBe("1.5");
    expect(document.activeElement).toBe(tile);
  });

  it("stays on a tile while another rank dies", () => {
    const world = make_world(1, 3);
    page = new TopologyPage(world);
    page.tile(1).focus();
    const tile = page.tile(1);
    die(world);
    expect(page.tile(2).dataset["state"]).toBe("dead");
    expect(document.activeElement).toBe(tile);
    page.tile(2).click();
    expect(page.root.querySelector(".px-details dl")?.textContent).toContain("broken: rank 2 is dead");
  });

  it("goes to the same rank of a world that is drawn anew", () => {
    page = new TopologyPage(make_world(1, 4));
    page.tile(3).focus();
    page.put({ world: make_world(2, 2) });
    expect(document.activeElement).toBe(page.tile(3));
    page.put({ world: make_world(1, 2) }); // this world has no rank 3
    expect(document.activeElement).toBe(page.tile(1));
  });

  it("is not taken from elsewhere by a world that is drawn anew", () => {
    page = new TopologyPage(make_world(1, 4));
    page.tile(3).focus();
    page.button("Compact").focus();
    page.put({ world: make_world(2, 2) });
    expect(document.activeElement).toBe(page.button("Compact"));
    expect(page.root.querySelector("button.px-tile[tabindex='0']")).toBe(page.tile(3));
  });

  it("stays on a rank in the table of links: zoomed, as a rank dies, and as hosts change", () => {
    const world = { ...make_world(1, 3), arenas: [], tcp: [[0, 1], [0, 2], [1, 2]] as [number, number][] };
    page = new TopologyPage(world, "links");
    page.link("0 1", 1).focus();
    page.press(["+", "+"]);
    expect(zoom()).toBe("1.5");
    die(world);
    expect(page.links.map(([ranks]) => ranks)).toEqual(["0 2", "1 2", "0 1"]);
    expect(page.links[1]?.[2]).toBe("broken: rank 2 is dead");
    expect(document.activeElement).toBe(page.link("0 1", 1));
    page.put({ world: { ...world, tcp: [[1, 2]] } }); // there is no such link any more
    expect(document.activeElement).toBe(page.link("1 2", 1));
  });
});
