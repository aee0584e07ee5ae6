// Copies and downloads of what is on screen.

import { h, s, setAttributes, SVG } from "./dom";

export type Table = { columns: string[]; rows: (string | number | boolean | null | undefined)[][] };

export function toCsv(table: Table): string {
  const cell = (value: unknown): string => {
    let text = value === null || value === undefined ? "" : String(value);
    // A spreadsheet would run a cell that begins like a formula.
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [table.columns, ...table.rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** What Markdown would read as markup or as a link. */
const MARKUP = /[\\`*<>[\]|~]|(?<!\w)_|_(?!\w)|:(?=\/\/)|(?<=www)\./g;

export function toMarkdown(table: Table): string {
  const cell = (value: unknown): string => String(value ?? "").replace(MARKUP, "\\$&").replace(/\s*\n\s*/g, " ");
  const line = (row: unknown[]): string => `| ${row.map(cell).join(" | ")} |`;
  return [line(table.columns), line(table.columns.map(() => "---")), ...table.rows.map(line)].join("\n");
}

/** One object per row. */
export function toJson(table: Table): string {
  const rows = table.rows.map((row) => Object.fromEntries(table.columns.map((name, i) => [name, row[i] ?? null])));
  return JSON.stringify(rows, null, 2);
}

/** A fenced block whose fence is longer than any run of backticks inside. */
export function fence(text: string): string {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((match) => match[0].length));
  const ticks = "`".repeat(longest + 1);
  return `${ticks}\n${text}\n${ticks}`;
}

export function download(name: string, content: string | Blob, type: string): void {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const url = URL.createObjectURL(blob);
  const anchor = h("a", { href: url, download: name.replace(/[^\w.-]+/g, "_") });
  anchor.click();
  window.setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A button that copies a text. */
export function copyButton(label: string, text: () => string): HTMLButtonElement {
  return h("button", { type: "button", onclick: (event: Event) => void copy(text(), event.currentTarget as HTMLElement) }, label);
}

/** What can be done with a table: the name of each action, and the action. */
function tableActions(name: string, table: () => Table): [string, (button?: HTMLElement) => void][] {
  return [
    ["Copy as Markdown", (button) => void copy(toMarkdown(table()), button)],
    ["Copy as JSON", (button) => void copy(toJson(table()), button)],
    ["CSV", () => download(`${name}.csv`, toCsv(table()), "text/csv")],
  ];
}

/** Buttons that copy and download a table; `short` for a narrow place. */
export function tableButtons(name: string, table: () => Table, short = false): HTMLElement[] {
  return tableActions(name, table).map(([label, act]) =>
    h("button", { type: "button", ...(short ? { title: label, "aria-label": label } : {}), onclick: (event: Event) => act(event.currentTarget as HTMLElement) }, short ? label.replace("Copy as ", "") : label));
}

export async function copy(text: string, button?: HTMLElement): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  announce("Copied.");
  if (button) {
    const before = button.textContent;
    button.textContent = "Copied";
    window.setTimeout(() => (button.textContent = before), 1200);
  }
}

/** Tell a screen reader what happened. */
export function announce(text: string): void {
  const region = document.getElementById("announcements");
  if (region) region.textContent = text;
}

const COPIED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "stroke-opacity",
  "font-size", "font-family", "font-weight", "text-anchor", "dominant-baseline"];

/** The figure as a file of its own: computed styles are written into it. */
export function toSvg(svg: SVGSVGElement, title: string): string {
  const clone = svg.cloneNode(true) as SVGSVGElement;
  const sources = [svg, ...svg.querySelectorAll<SVGElement>("*")];
  const targets = [clone, ...clone.querySelectorAll<SVGElement>("*")];
  sources.forEach((source, index) => {
    const style = getComputedStyle(source);
    for (const name of COPIED) targets[index]!.setAttribute(name, style.getPropertyValue(name));
    targets[index]!.removeAttribute("class");
  });
  const box = svg.getBoundingClientRect();
  setAttributes(clone, { xmlns: SVG, width: Math.round(box.width), height: Math.round(box.height) });
  clone.prepend(s("title", {}, title), s("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor }));
  return new XMLSerializer().serializeToString(clone);
}

export async function toPng(svg: SVGSVGElement, title: string, scale = 2): Promise<Blob> {
  const text = toSvg(svg, title);
  const image = new Image();
  const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    image.src = url;
    await image.decode();
    const canvas = h("canvas", { width: image.width * scale, height: image.height * scale });
    const context = canvas.getContext("2d")!;
    context.scale(scale, scale);
    context.drawImage(image, 0, 0);
    return await new Promise((resolve, reject) =>
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no image"))), "image/png"),
    );
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** The menu of a figure: SVG, PNG, and the numbers behind it as a table. */
export function figureMenu(name: string, svg: () => SVGSVGElement, table: () => Table): HTMLElement {
  const actions: [string, () => void][] = [
    ...tableActions(name, table),
    ["SVG", () => download(`${name}.svg`, toSvg(svg(), name), "image/svg+xml")],
    ["PNG", () => void toPng(svg(), name).then((blob) => download(`${name}.png`, blob, "image/png"))],
  ];
  const items = actions.map(([label, act]) => h("button", { type: "button", onclick: () => { act(); menu.removeAttribute("open"); } }, label));
  const menu = h("details", { class: "menu" },
    h("summary", { "aria-label": `Copy or download ${name}`, title: "Copy or download" }, "⋯"), h("div", { class: "menu-items" }, items));
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape") menu.removeAttribute("open");
  });
  return menu;
}
