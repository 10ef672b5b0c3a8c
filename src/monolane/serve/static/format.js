// Numbers as people read them.

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** A count, with separators: 1,284. */
export const count = (value) => grouped.format(value);

/** Tokens per second: three digits are enough, 8.41, 41.7, 417, 4,170. */
export function rate(value) {
  if (value >= 100) return grouped.format(value);
  return value.toFixed(value >= 10 ? 1 : 2);
}

/** Milliseconds as "0.42 ms", "18 ms" or "1.24 s". */
export function duration(ms) {
  if (ms < 10) return `${ms.toFixed(ms < 1 ? 2 : 1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s` : minutes(ms);
}

/** A share of one as a percentage. */
export const percent = (share) => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;

function minutes(ms) {
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}
