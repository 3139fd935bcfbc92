// The part of anywidget's model that our widgets use, and the records in its traits. Tests use a fake.

export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown): void;
  on(name: string, handle: (...args: never[]) => void): void;
  off(name: string, handle: (...args: never[]) => void): void;
}

export interface View {
  model: Model;
  el: HTMLElement;
}

/** What each widget's frames begin with: whether the ranks answer, else why not. */
export interface Status {
  status: "live" | "silent" | "gone";
  why: string;
}

/** Bytes per second over the tcp link from one rank to another. */
export type LinkRate = [source: number, target: number, rate: number];

/** Send if there is a kernel; an exported page has none. */
export function send(model: Model, content: unknown): boolean {
  try {
    model.send(content);
    return true;
  } catch {
    return false;
  }
}

/** Read a record; null before the first one, or if it is invalid. */
export function decode<T>(bytes: DataView | null | undefined): T | null {
  if (!bytes || bytes.byteLength === 0) return null;
  try {
    return JSON.parse(new TextDecoder().decode(bytes)) as T;
  } catch {
    return null;
  }
}
