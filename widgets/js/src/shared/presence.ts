// Tells the kernel whether somebody can see this view: it works for no other.

import type { Cleanup } from "./dom";
import { send, type Model } from "./model";

const RENEW_S = 2; // a kernel forgets who looks after three of these
const THERE_S = 30; // and a view that is out of sight after five

let n_views = 0;

/** Watch a view until it is closed; `on_change` hears when it comes into sight, or goes out of it. */
export function tell_presence(
  model: Model,
  root: HTMLElement,
  cleanup: Cleanup,
  on_change: (is_seen: boolean) => void,
): void {
  const view = `${Date.now().toString(36)}.${n_views++}`;
  let is_in_sight = typeof IntersectionObserver === "undefined";
  let was_seen = false;
  let said_ms = -Infinity;

  const tell = (): void => {
    const is_seen = is_in_sight && document.visibilityState !== "hidden";
    if (is_seen) send(model, { kind: "look", view });
    else if (was_seen) send(model, { kind: "leave", view });
    const now_ms = performance.now();
    if (!is_seen && now_ms >= said_ms + THERE_S * 1000) send(model, { kind: "there", view });
    if (is_seen || now_ms >= said_ms + THERE_S * 1000) said_ms = now_ms;
    if (is_seen !== was_seen) {
      was_seen = is_seen;
      on_change(is_seen);
    }
  };

  if (typeof IntersectionObserver !== "undefined") {
    const observer = new IntersectionObserver((entries) => {
      is_in_sight = entries[entries.length - 1]?.isIntersecting ?? false;
      tell();
    });
    observer.observe(root);
    cleanup.add(() => observer.disconnect());
  }
  cleanup.on(document, "visibilitychange", tell);
  cleanup.every(RENEW_S, tell);
  cleanup.add(() => void send(model, { kind: "close", view }));
  tell();
}
