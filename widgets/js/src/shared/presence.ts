// Tells the kernel whether this view is visible; the kernel works only for visible views.

import type { Disposables } from "./dom";
import { send, type Model } from "./model";

const RENEW_S = 2; // the kernel forgets a visible view after three of these

let n_views = 0;

/** Watch a view until it is closed; call `on_change` when it becomes visible or hidden. */
export function report_visibility(
  model: Model,
  root: HTMLElement,
  disposables: Disposables,
  on_change: (is_seen: boolean) => void,
): void {
  const view = `${Date.now().toString(36)}.${n_views++}`;
  let is_in_sight = false;
  let was_seen = false;

  const tell = (): void => {
    const is_seen = is_in_sight && document.visibilityState !== "hidden";
    if (is_seen) send(model, { kind: "look", view });
    else if (was_seen) send(model, { kind: "leave", view });
    if (is_seen !== was_seen) {
      was_seen = is_seen;
      on_change(is_seen);
    }
  };

  const observer = new IntersectionObserver((entries) => {
    is_in_sight = entries[entries.length - 1]?.isIntersecting ?? false;
    tell();
  });
  disposables.add(() => observer.disconnect());
  disposables.on(document, "visibilitychange", tell);
  disposables.every(RENEW_S, tell);
  disposables.add(() => void send(model, { kind: "close", view }));
  send(model, { kind: "open", view });
  observer.observe(root);
}
