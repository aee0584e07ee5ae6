// Small parts that several views share.

import { h, select } from "../dom";
import { setParams } from "../router";
import type { Status } from "../types";

const STATUS_MARK: Record<Status, string> = { running: "●", finished: "✓", interrupted: "‖", failed: "✕", empty: "○" };

export function statusBadge(status: Status): HTMLElement {
  return h("span", { class: `badge ${status}` }, h("i", { "aria-hidden": "true" }, STATUS_MARK[status]), status === "empty" ? "not started" : status);
}

export function smoothing(window: number): HTMLElement {
  const windows = [5, 10, 20, 50, 100].map((n): [string, string] => [String(n), `${n} steps`]);
  return select("Smoothing", String(window), [["1", "none"], ...windows], (value) => setParams({ smooth: value === "1" ? null : value }));
}
