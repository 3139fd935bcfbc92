// What jsdom lacks, as it has no layout: everything is in sight, nothing changes its size, nothing is drawn.
import { vi } from "vitest";

class Observer {
  constructor(private readonly call: (entries: object[]) => void) {}
  observe(): void {}
  disconnect(): void {}
  protected see(): void {
    this.call([{ isIntersecting: true }]);
  }
}
vi.stubGlobal("ResizeObserver", Observer);
vi.stubGlobal(
  "IntersectionObserver",
  class extends Observer {
    override observe(): void {
      this.see();
    }
  },
);
const media = new Map<string, EventTarget>();
vi.stubGlobal("matchMedia", (query: string) => media.get(query) ?? media.set(query, new EventTarget()).get(query));
HTMLCanvasElement.prototype.getContext = (() => null) as never;
