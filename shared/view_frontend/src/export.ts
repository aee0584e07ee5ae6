// Copies and downloads of what is on screen.

import { h, s, setAttributes, SVG } from "./dom";

export type Table = { columns: string[]; rows: (string | number | null | undefined)[][] };

export function toCsv(table: Table): string {
  const cell = (value: unknown): string => {
    let text = String(value ?? "");
    // A spreadsheet would run a cell that begins like a formula.
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [table.columns, ...table.rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

export function download(name: string, content: string, type: string): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const anchor = h("a", { href: url, download: name.replace(/[^\w.-]+/g, "_") });
  anchor.click();
  window.setTimeout(() => URL.revokeObjectURL(url), 10_000);
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

export function copyButton(label: string, text: () => string): HTMLButtonElement {
  const button = h("button", { type: "button", onclick: () => void copy(text(), button) }, label);
  return button;
}

/** Tell a screen reader what happened. */
export function announce(text: string): void {
  const region = document.getElementById("announcements");
  if (region) region.textContent = text;
}

const COPIED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "stroke-opacity",
  "font-size", "font-family", "font-weight", "text-anchor", "dominant-baseline"];

/** The figure as a file of its own: computed styles are written into it. */
function toSvg(svg: SVGSVGElement, title: string): string {
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

/** Buttons of a figure: the picture, and the numbers behind it. */
export function figureButtons(name: string, svg: SVGSVGElement, table: () => Table): HTMLElement {
  const button = (kind: string, act: () => void): HTMLElement => h("button", { type: "button", class: "link", "aria-label": `${kind} of ${name}`, onclick: act }, kind);
  return h("span", { class: "downloads" },
    button("SVG", () => download(`${name}.svg`, toSvg(svg, name), "image/svg+xml")),
    button("CSV", () => download(`${name}.csv`, toCsv(table()), "text/csv")));
}
