// What each line of the panels is, for the page and for the picture that is saved. Pure.

import type { Frame } from "./state";

export interface Entry {
  words: string;
  /** Of theme.css. */
  colour: string;
  width: number;
  /** Pixels drawn and left out; none: all is drawn. */
  dash: number[];
  is_earlier: boolean;
}

const N_EARLIER = 5; // colours after the first, in turn

/** The colour of an earlier run. */
export function colour_of_earlier(i: number): string {
  return `series-${2 + (i % N_EARLIER)}`;
}

export const OWN = "series-1";
export const MODEL_DASH = [4, 4];
export const CHANGE_DASH = [1, 4];

export function legend(frame: Frame): Entry[] {
  const { run, earlier, fit, changes } = frame;
  const entries: Entry[] = [];
  const add = (words: string, colour: string, width: number, dash: number[] = [], is_earlier = false): void => {
    if (words) entries.push({ words, colour, width, dash, is_earlier });
  };
  add(run?.name ?? "", OWN, 2);
  if (fit && (run?.points.length ?? 0) > 1) add("the model that fits it", OWN, 1.2, MODEL_DASH);
  if (changes.length) add("where its algorithm changes", OWN, 1.4, CHANGE_DASH);
  earlier.forEach((one, i) => add(one.name, colour_of_earlier(i), 1.2, [], true));
  return entries;
}
