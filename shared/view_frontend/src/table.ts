// Tables, with a button that downloads what they show.

import { h, type Child } from "./dom";
import { download, toCsv } from "./export";

/** A table in a region that scrolls. */
export function tableRegion(label: string, head: HTMLElement[], rows: HTMLElement[], className = ""): HTMLDivElement {
  const texts = (row: Element): string[] => [...row.children].map((cell) => cell.textContent ?? "");
  const save = (): void => download(`${label}.csv`, toCsv({ columns: head.map((cell) => cell.textContent ?? ""), rows: rows.map(texts) }), "text/csv");
  return h("div", {},
    h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": label },
      h("table", { class: className }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows))),
    h("div", { class: "downloads" }, h("button", { type: "button", class: "link", "aria-label": `CSV of ${label}`, onclick: save }, "CSV")));
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
