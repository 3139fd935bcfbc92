// A live topology on a page; the test plays the kernel and the reader.
import topology from "../../src/topology";
import type { World } from "../../src/topology/state";
import { FakeModel, make_frame, make_rank, packed } from "./fakes";

export class Page {
  readonly model = new FakeModel();
  readonly root = document.body.appendChild(document.createElement("div"));
  readonly close: () => void;

  constructor(world: World, mode = "") {
    this.model.values.set("selected", -1);
    this.model.values.set("mode", mode);
    this.model.values.set("world", packed(world));
    this.model.values.set("frame", packed(make_frame(world.home.map(() => make_rank("idle")))));
    this.close = topology.render({ model: this.model, el: this.root });
  }

  tile(rank: number): HTMLButtonElement {
    return this.root.querySelectorAll<HTMLButtonElement>("button.px-tile")[rank] as HTMLButtonElement;
  }

  button(words: string): HTMLButtonElement {
    return [...this.root.querySelectorAll("button")].find((its) => its.textContent === words) as HTMLButtonElement;
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

  /** Press keys on the focused element; none gets them if that is the page itself. */
  press(...keys: string[]): void {
    for (const key of keys) {
      document.activeElement?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    }
  }

  search(words: string): void {
    const input = this.root.querySelector("input[type=search]") as HTMLInputElement;
    input.value = words;
    input.dispatchEvent(new Event("input"));
  }
}
