// Series of points, as pure functions: smoothing, thinning, limits of an axis.

import { bisectCenter } from "d3-array";
import type { Value } from "./types";

export type XY = [number, Value];

const MAX_POINTS = 1200;
/** A share's axis ends where the values end if all of them are smaller. */
const SMALL_SHARE = 0.4;
/** A line through two points would suggest a trend that nobody measured: they are drawn as points. */
export const MIN_LINE_POINTS = 3;

/** Student's interval of a share may reach beyond 0 and 1; a figure shows only what is possible. */
export function clampTo(bounds: [number, number] | null): (value: Value) => Value {
  return (value) => (value === null || !bounds ? value : Math.min(bounds[1], Math.max(bounds[0], value)));
}

/** Shares begin at 0 and end at 1, or earlier if all of them are small. */
export function yDomain(values: number[], bounds: [number, number] | null): [number, number] {
  if (bounds && bounds[0] === 0 && bounds[1] === 1) {
    const high = Math.max(0, ...values);
    return [Math.min(0, ...values), high > 0 && high < SMALL_SHARE ? high : 1];
  }
  if (!values.length) return [0, 1];
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (low > 0 && low < 0.5 * high) low = 0;
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  return [low, high];
}

export function nearest(points: XY[], x: number): XY | null {
  if (!points.length) return null;
  return points[bisectCenter(points.map((p) => p[0]), x)] ?? null;
}

export function last(points: XY[]): XY | null {
  for (let i = points.length - 1; i >= 0; i--) if (points[i]![1] !== null) return points[i]!;
  return null;
}

/** At most MAX_POINTS of the visible points: the extremes of each bucket, so that no peak is lost. */
export function thin(points: XY[], from: number, to: number): XY[] {
  const visible = points.filter((p) => p[0] >= from - 1 && p[0] <= to + 1);
  if (visible.length <= MAX_POINTS) return visible;
  const size = Math.ceil(visible.length / (MAX_POINTS / 2));
  const kept: XY[] = [];
  for (let start = 0; start < visible.length; start += size) {
    const bucket = visible.slice(start, start + size).filter((p) => p[1] !== null);
    if (!bucket.length) continue;
    const low = bucket.reduce((a, b) => (b[1]! < a[1]! ? b : a));
    const high = bucket.reduce((a, b) => (b[1]! > a[1]! ? b : a));
    kept.push(...(low[0] <= high[0] ? [low, high] : [high, low]));
  }
  return kept;
}

/** Exponential moving average over about `window` steps, without the bias of its start. */
export function smooth(points: XY[], window: number): XY[] {
  if (window <= 1) return points;
  const keep = 1 - 2 / (window + 1);
  let sum = 0;
  let weight = 0;
  return points.map(([x, value]) => {
    if (value === null) return [x, null];
    sum = sum * keep + value;
    weight = weight * keep + 1;
    return [x, sum / weight];
  });
}
