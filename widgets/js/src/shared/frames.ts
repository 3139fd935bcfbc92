// Records that came as one binary trait: JSON in bytes.

/** Read a record; null before the first has come, or where it is none. */
export function decode<T>(bytes: DataView | null | undefined): T | null {
  if (!bytes || bytes.byteLength === 0) return null;
  try {
    return JSON.parse(new TextDecoder().decode(bytes)) as T;
  } catch {
    return null;
  }
}
