// A fake of anywidget's model with a kernel that the test plays, and made-up worlds.
import type { Model } from "../../src/shared/model";
import type { Frame, RankNow, State, World } from "../../src/topology/state";

type Handle = (...args: unknown[]) => void;

export class FakeModel implements Model {
  readonly values = new Map<string, unknown>();
  readonly sent: Record<string, unknown>[] = [];
  private readonly handles = new Map<string, Set<Handle>>();

  get(name: string): unknown {
    return this.values.get(name);
  }

  set(name: string, value: unknown): void {
    this.values.set(name, value);
    this.tell(`change:${name}`);
  }

  save_changes(): void {}

  send(content: unknown): void {
    this.sent.push(content as Record<string, unknown>);
  }

  on(name: string, handle: (...args: never[]) => void): void {
    const known = this.handles.get(name) ?? new Set();
    this.handles.set(name, known.add(handle as Handle));
  }

  off(name: string, handle: (...args: never[]) => void): void {
    this.handles.get(name)?.delete(handle as Handle);
  }

  tell(name: string, ...args: unknown[]): void {
    for (const handle of this.handles.get(name) ?? []) handle(...args);
  }

  get n_listeners(): number {
    return [...this.handles.values()].reduce((n, known) => n + known.size, 0);
  }
}

export function packed(record: unknown): DataView {
  return new DataView(new TextEncoder().encode(JSON.stringify(record)).buffer);
}

export function make_world(n_hosts: number, per_host: number): World {
  const size = n_hosts * per_host;
  const ranks = Array.from({ length: size }, (_, rank) => rank);
  const tcp: [number, number][] = [];
  for (let host = 0; host + 1 < n_hosts; host++) tcp.push([host * per_host, (host + 1) * per_host]);
  return {
    name: "phalanx-1",
    hosts: Array.from({ length: n_hosts }, (_, index) => ({
      index, name: `node${index}`, where: `10.0.0.${index}`, load: `${per_host} ranks on 2 cores`,
    })),
    home: ranks.map((rank) => Math.floor(rank / per_host)),
    arenas: Array.from({ length: n_hosts }, (_, host) =>
      ranks.filter((rank) => Math.floor(rank / per_host) === host),
    ),
    tcp,
  };
}

export function make_rank(state: State, more: Partial<RankNow> = {}): RankNow {
  return { state, since: 1000, pid: 41200, rss: 200 << 20, detail: "", last: "", ...more };
}

export function make_frame(ranks: RankNow[], more: Partial<Frame> = {}): Frame {
  return { status: "live", why: "", epoch: 1, now: 1012, ranks, links: [], arena: [], measuring: "", ...more };
}
