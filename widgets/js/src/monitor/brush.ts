// Rectangles and words for a canvas, gathered by colour and drawn at once. It knows no lanes.

export interface Words {
  words: string;
  x: number;
  y: number;
  room: number;
  colour: string;
}

/**
 * What is to be filled, by colour: tens of thousands of rectangles are drawn with a few changes of
 * the canvas's state, on whole pixels, which needs no smoothing.
 */
export class Brush {
  private readonly fills = new Map<string, Map<number, number[]>>();
  readonly words: Words[] = [];

  rect(colour: string, alpha: number, x: number, y: number, w: number, h: number): void {
    const by_alpha = this.fills.get(colour) ?? new Map<number, number[]>();
    if (!by_alpha.size) this.fills.set(colour, by_alpha);
    const rects = by_alpha.get(alpha) ?? [];
    if (!rects.length) by_alpha.set(alpha, rects);
    const left = Math.round(x);
    const top = Math.round(y);
    const width = Math.max(1, Math.round(x + w) - left);
    const height = Math.max(0, Math.round(y + h) - top);
    const last = rects.length - 4;
    const is_beside = last >= 0 && left === (rects[last] ?? 0) + (rects[last + 2] ?? 0);
    // What goes on as it was is one.
    if (is_beside && top === rects[last + 1] && height === rects[last + 3]) rects[last + 2] = (rects[last + 2] ?? 0) + width;
    else rects.push(left, top, width, height);
  }

  flush(context: CanvasRenderingContext2D): void {
    for (const [colour, by_alpha] of this.fills) {
      context.fillStyle = colour;
      for (const [alpha, rects] of by_alpha) {
        context.globalAlpha = alpha;
        for (let at = 0; at < rects.length; at += 4) {
          context.fillRect(rects[at] ?? 0, rects[at + 1] ?? 0, rects[at + 2] ?? 0, rects[at + 3] ?? 0);
        }
      }
    }
    context.globalAlpha = 1;
    this.fills.clear();
  }

  /** Write what there is room for. */
  write(context: CanvasRenderingContext2D): void {
    context.font = "600 11px system-ui, sans-serif";
    context.textAlign = "left";
    for (const { words, x, y, room, colour } of this.words) {
      if (context.measureText(words).width + 8 > room) continue;
      context.fillStyle = colour;
      context.fillText(words, x + 4, y);
    }
  }
}
