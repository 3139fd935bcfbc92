// Formats numbers for a person.

/** 1 rank, 2 ranks. */
export function count(n: number, thing: string): string {
  return n === 1 ? `1 ${thing}` : `${n} ${thing}s`;
}

/** 0-2,5 */
export function ranges(numbers: Iterable<number>): string {
  const runs: [number, number][] = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && last[1] === n - 1) last[1] = n;
    else runs.push([n, n]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",");
}

/** Format a duration like the kernel's side: 59 s, 2 min 05 s, 2 h 01 min. */
export function age(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (n: number): string => String(n).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

/** 1536 B is 1.5 KiB. */
export function size(nbytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = nbytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : Number(value.toPrecision(3))} ${units[unit]}`;
}

/** Format bytes per second, with 1 GB = 1e9 bytes as in all bandwidths. */
export function rate(bytes: number): string {
  const [unit, name] =
    bytes >= 1e9 ? [1e9, "GB/s"] : bytes >= 1e6 ? [1e6, "MB/s"] : bytes >= 1e3 ? [1e3, "kB/s"] : [1, "B/s"];
  return `${Number((bytes / unit).toPrecision(3))} ${name}`;
}
