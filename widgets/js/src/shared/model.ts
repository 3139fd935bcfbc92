// What of anywidget's model our widgets use; tests have one of their own.

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

/** Send, where there is a kernel: a page that was exported has none. */
export function send(model: Model, content: unknown): boolean {
  try {
    model.send(content);
    return true;
  } catch {
    return false;
  }
}
