import { afterEach, describe, expect, it, vi } from "vitest";
import { Disposables } from "../src/shared/dom";
import { decode } from "../src/shared/model";
import { report_visibility } from "../src/shared/presence";
import { Requests, KERNEL_BUSY } from "../src/shared/requests";
import { age, count, ranges, size } from "../src/shared/words";
import { FakeModel, packed } from "./support/fakes";

afterEach(() => vi.useRealTimers());

describe("words", () => {
  it.each([
    [59.9, "59 s"],
    [125, "2 min 05 s"],
    [7260, "2 h 01 min"],
    [-3, "0 s"],
  ])("age %d", (seconds, words) => expect(age(seconds)).toBe(words));
  it.each([
    [0, "0 B"],
    [1536, "1.5 KiB"],
    [200 << 20, "200 MiB"],
    [2 ** 60, "1048576 TiB"],
  ])("size %d", (nbytes, words) => expect(size(nbytes)).toBe(words));
  it("ranges and counts", () => {
    expect(ranges([5, 0, 2, 1])).toBe("0-2,5");
    expect(ranges([])).toBe("");
    expect([count(1, "rank"), count(2, "rank")]).toEqual(["1 rank", "2 ranks"]);
  });
});

it("decodes a record, and nothing that is none", () => {
  expect(decode(packed({ a: "ü" }))).toEqual({ a: "ü" });
  expect(decode(new DataView(new ArrayBuffer(0)))).toBeNull();
  expect(decode(new DataView(new ArrayBuffer(4)))).toBeNull();
  expect(decode(undefined)).toBeNull();
});

describe("requests", () => {
  it("gives an answer to who asked", async () => {
    const model = new FakeModel();
    const [one, two] = [new Requests(model, new Disposables()), new Requests(model, new Disposables())];
    const first = one.ask("stacks", { rank: 1 }, 5);
    const second = two.ask("stacks", { rank: 2 }, 5);
    const answer = (n: number, ok: boolean, text: string): void =>
      model.tell("msg:custom", { kind: "answer", id: model.sent[n]?.["id"], ok, text });
    answer(1, true, "second");
    expect(await second).toEqual({ ok: true, text: "second" });
    answer(0, false, "first");
    expect(await first).toEqual({ ok: false, text: "first" });
  });
  it("gives up in time", async () => {
    vi.useFakeTimers();
    const answer = new Requests(new FakeModel(), new Disposables()).ask("stacks", {}, 5);
    vi.advanceTimersByTime(5000);
    expect((await answer).text).toContain("no answer within 5 s");
  });
  it("says that a front end keeps clicks from a busy kernel, and only there", () => {
    vi.useFakeTimers();
    const model = new FakeModel();
    const requests = new Requests(model, new Disposables());
    const said: string[] = [];
    const ask = (): unknown => requests.ask("stacks", {}, 5, (text) => said.push(text));
    ask();
    model.tell("msg:custom", { kind: "ack", id: model.sent[0]?.["id"] });
    vi.advanceTimersByTime(3000);
    expect(said).toEqual([]);
    ask();
    vi.advanceTimersByTime(3000);
    expect(said).toEqual([KERNEL_BUSY]);
  });
  it("says so where there is no kernel", async () => {
    const model = new FakeModel();
    model.send = () => {
      throw new Error("no comm");
    };
    const answer = await new Requests(model, new Disposables()).ask("stacks", {}, 5);
    expect(answer).toEqual({ ok: false, text: "there is no kernel here to ask" });
  });
});

it("says that it is looked at, again and again, and when it is not", () => {
  vi.useFakeTimers();
  const [model, disposables] = [new FakeModel(), new Disposables()];
  const seen: boolean[] = [];
  report_visibility(model, document.body, disposables, (is_seen) => seen.push(is_seen));
  vi.advanceTimersByTime(4000);
  expect(model.sent.map((message) => message["kind"])).toEqual(["open", "look", "look", "look"]);
  const hidden = vi.spyOn(document, "visibilityState", "get").mockReturnValue("hidden");
  document.dispatchEvent(new Event("visibilitychange"));
  vi.advanceTimersByTime(4000);
  vi.advanceTimersByTime(60_000);
  expect(model.sent.slice(4).map((message) => message["kind"])).toEqual(["leave"]);
  expect(seen).toEqual([true, false]);
  hidden.mockRestore();
  disposables.run();
  expect(model.sent.slice(-1)[0]?.["kind"]).toBe("close");
  const n_sent = model.sent.length;
  vi.advanceTimersByTime(10_000);
  expect(model.sent.length).toBe(n_sent);
});
