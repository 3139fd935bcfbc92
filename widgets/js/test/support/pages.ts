// A live view on a page; the test plays the kernel and the reader.
import { onTestFinished } from "vitest";
import type { View } from "../../src/shared/model";
import topology from "../../src/topology";
import type { World } from "../../src/topology/state";
import { FakeModel, make_frame, make_rank, packed } from "./fakes";

/** A view on a page of its own, closed with the test: its timers would outlive the page. */
export class Page {
  readonly model = new FakeModel();
  readonly root = document.body.appendChild(document.createElement("div"));
  readonly close: () => void;

  constructor({ render }: { render: (view: View) => () => void }, traits: Record<string, unknown> = {}) {
    for (const [name, its] of Object.entries(traits)) this.model.values.set(name, typeof its === "object" ? packed(its) : its);
    this.close = render({ model: this.model, el: this.root });
    onTestFinished(() => {
      this.close();
      this.root.remove();
    });
  }

  /** Have records come from the kernel, as the traits of these names. */
  put(traits: Record<string, unknown>): void {
    for (const [name, its] of Object.entries(traits)) this.model.set(name, packed(its));
  }

  find<E extends HTMLElement>(query: string): E {
    return this.root.querySelector(query) as E;
  }

  text(query: string): string {
    return this.find(query).textContent ?? "";
  }

  button(words: string): HTMLButtonElement {
    return [...this.root.querySelectorAll("button")].find((its) => its.textContent === words) as HTMLButtonElement;
  }

  /** Return the requests so far. */
  get asked(): Record<string, unknown>[] {
    return this.model.sent.filter((its) => its["kind"] === "ask");
  }

  /** Answer the last request. */
  async answer(ok: boolean, text: string): Promise<void> {
    this.model.tell("msg:custom", { kind: "answer", id: this.asked.pop()?.["id"], ok, text });
    await settle();
  }

  /** Press keys on an element, else on the focused one; none gets them if that is the page itself. */
  press(keys: string[], on?: Element): void {
    for (const key of keys) {
      const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
      (on ?? document.activeElement)?.dispatchEvent(event);
    }
  }

  /** Type into a field, which its label or role names. */
  type(query: string, words: string): void {
    const field = this.find<HTMLInputElement>(query);
    field.value = words;
    field.dispatchEvent(new Event("input"));
  }
}

/** Yield an element and all nodes in it, in the order of the page. */
export function* nodes_of(root: Node): Generator<Node> {
  yield root;
  for (const child of root.childNodes) yield* nodes_of(child);
}

/** Let what waits for an answer go on. */
export async function settle(): Promise<void> {
  for (let at = 0; at < 4; at++) await Promise.resolve();
}

export class TopologyPage extends Page {
  constructor(world: World, mode = "") {
    super(topology, { selected: -1, mode, world, frame: make_frame(world.home.map(() => make_rank("idle"))) });
  }

  tile(rank: number): HTMLButtonElement {
    return this.root.querySelectorAll<HTMLButtonElement>("button.px-tile")[rank] as HTMLButtonElement;
  }

  /** Return the texts of the visible rows of the table of links. */
  get links(): (string | null)[][] {
    const rows = this.root.querySelectorAll<HTMLTableRowElement>(".px-link-table tbody tr:not([hidden])");
    return [...rows].map((row) => [...row.cells].map((cell) => [...cell.childNodes].map((its) => its.textContent).join(" ")));
  }

  /** Return the button of a rank in the table of links. */
  link(ranks: string, rank: number): HTMLButtonElement {
    const at = this.links.findIndex(([its]) => its === ranks);
    const row = this.root.querySelectorAll(".px-link-table tbody tr:not([hidden])")[at];
    return row?.querySelector(`[aria-label="rank ${rank}"]`) as HTMLButtonElement;
  }

  search(words: string): void {
    this.type("input[type=search]", words);
  }
}
