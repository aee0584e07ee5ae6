// Parts that several views share: badges, a choice of smoothing, tables.

import { h, select, type Child } from "../dom";
import { setParams } from "../router";
import type { Status } from "../types";

const STATUS_MARK: Record<Status, string> = { running: "●", finished: "✓", interrupted: "‖", failed: "✕", empty: "○", file: "▤" };

export function statusBadge(status: Status): HTMLElement {
  return h("span", { class: `badge ${status}` }, h("i", { "aria-hidden": "true" }, STATUS_MARK[status]), status === "empty" ? "not started" : status);
}

export function smoothing(window: number): HTMLElement {
  const windows = [5, 10, 20, 50, 100].map((n): [string, string] => [String(n), `${n} steps`]);
  return select("Smoothing", String(window), [["1", "none"], ...windows], (value) => setParams({ smooth: value === "1" ? null : value }));
}

/** A table in a region that scrolls. */
export function tableRegion(label: string, head: HTMLElement[], rows: HTMLElement[], className = ""): HTMLDivElement {
  return h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", { class: className }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

/** Headings of columns; all but the first `left` hold numbers. */
export function headings(names: string[], left = 1): HTMLElement[] {
  return names.map((name, i) => h("th", { scope: "col", class: i < left ? "" : "numeric" }, name));
}

/** A table that is folded unless `open`. A cell of a row may have small print: `[text, small print]`. */
export function foldedTable(title: string, columns: string[], rows: (Child | [Child, string])[][], open = false, note = ""): HTMLElement {
  const cell = (content: Child | [Child, string]): Child[] => (Array.isArray(content) ? [content[0], h("small", { class: "block" }, content[1])] : [content]);
  return h("details", { class: `fold${open ? " opened" : ""}`, open },
    h("summary", {}, title),
    tableRegion(title, headings(columns), rows.map((cells) => h("tr", {}, cells.map((content, i) => (i ? h("td", { class: "numeric" }, cell(content)) : h("th", { scope: "row" }, cell(content))))))),
    note ? h("p", { class: "muted" }, note) : null);
}
