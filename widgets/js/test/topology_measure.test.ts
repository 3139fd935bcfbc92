// The measurement of links: progress, stop from any view, and the focus is kept.
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { make_frame, make_rank, make_world, packed } from "./support/fakes";
import { Page } from "./support/topology_page";

const world = make_world(2, 2);
const NASTY = "stopped <script>alert(1)</script>";
const FAR = "504 of 2016 links, about 24 s left";

describe("links that are measured", () => {
  let page: Page;
  beforeEach(() => (page = new Page(world, "links")));
  afterEach(() => {
    page.close();
    document.body.replaceChildren();
  });
  const frame = (measuring: string, status: "live" | "gone" = "live"): void =>
    page.model.set("frame", packed(make_frame(Array(4).fill(make_rank("busy")), { measuring, status })));
  const shown = (): string | null | undefined => page.root.querySelector(".px-measure .px-buttons")?.textContent;
  const settle = async (): Promise<void> => {
    for (let i = 0; i < 4; i++) await Promise.resolve();
  };

  it("say how far they are, to a view that has not asked as well", () => {
    expect(page.button("Stop").hidden).toBe(true);
    frame(FAR);
    expect(shown()).toContain(FAR);
    expect(page.button("Stop").hidden).toBe(false);
    expect(page.button("Measure the links").disabled).toBe(true);
    frame("");
    expect(shown()).not.toContain("504");
    expect(page.button("Stop").hidden).toBe(true);
    expect(page.button("Measure the links").disabled).toBe(false);
  });

  it("are stopped when asked, and say so; the focus stays in reach", async () => {
    page.button("Measure the links").focus();
    page.button("Measure the links").click();
    const asked = page.model.sent[page.model.sent.length - 1];
    expect(asked).toMatchObject({ kind: "ask", action: "links" });
    expect(page.button("Measure the links").getAttribute("aria-disabled")).toBe("true");
    frame(FAR);
    page.button("Stop").focus();
    page.button("Stop").click();
    expect(page.model.sent[page.model.sent.length - 1]).toMatchObject({ kind: "ask", action: "stop_links" });
    page.model.answer(true, "the measurement was asked to stop");
    await settle();
    frame("");
    expect(document.activeElement).toBe(page.button("Measure the links"));
    page.model.tell("msg:custom", { kind: "answer", id: asked?.["id"], ok: true, text: NASTY });
    await settle();
    expect(page.root.querySelector(".px-measured")?.textContent).toBe(NASTY);
    expect(page.root.querySelector("script")).toBeNull();
    expect(page.button("Measure the links").getAttribute("aria-disabled")).toBeNull();
    expect(page.button("Measure the links").disabled).toBe(false);
  });

  it("are not said to go on in a world that is gone", () => {
    frame(FAR);
    frame(FAR, "gone");
    expect(page.button("Stop").hidden).toBe(true);
    expect(shown()).not.toContain("504");
  });
});
