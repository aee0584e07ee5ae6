// Line charts in SVG that share one step axis: hovering one reads all, dragging zooms all.

import { bisectCenter } from "d3-array";
import { scaleLinear, type ScaleLinear } from "d3-scale";
import { area, line } from "d3-shape";
import { h, replace, s, setAttributes } from "./dom";
import { number } from "./format";
import type { Bounds, Mark, Value } from "./types";

export type XY = [number, Value];

export interface Line {
  name: string;
  /** Number of its colour, 0 to 7. */
  color: number;
  points: XY[];
  /** Unsmoothed values, drawn behind the line. */
  raw?: XY[];
  /** Interval at each x. */
  band?: [number, Value, Value][];
  /** A few evaluations: draw points, and intervals as vertical lines instead of a band. */
  dots?: boolean;
  /** A single run behind its arm's mean. */
  faint?: boolean;
}

export interface ChartSpec {
  title: string;
  /** Of its element; the title if it has none. */
  id?: string;
  isSelected?: boolean;
  unit: string;
  help?: string;
  bounds: Bounds;
  lines: Line[];
  marks?: Mark[];
  from: number;
  to: number;
  /** The name of each step, if it has one. */
  names?: Record<string, string>;
}

export interface ChartEvents {
  onpick?: (x: number) => void;
  onzoom?: (from: number, to: number) => void;
}

/** The step under the pointer, shared by all charts of a page. */
export class Cursor {
  x: number | null = null;
  private readonly listeners = new Set<() => void>();

  set(x: number | null): void {
    if (x === this.x) return;
    this.x = x;
    this.listeners.forEach((listener) => listener());
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

const MARGIN = { left: 46, right: 12, top: 8, bottom: 22 };
/** Between the axis and its first step, so that a mark there does not touch the labels. */
const PAD = 6;
const HEIGHT = 168;
/** Height of an enlarged chart, as a share of the window's. */
const ENLARGED = 0.7;
const MAX_DOTS = 60;
/** A share's axis ends where the values end if all of them are smaller. */
const SMALL_SHARE = 0.4;
/** Marks of ordinary events, below the axis; others are vertical lines. */
const AXIS_MARKS: Record<string, (x: number, y: number) => string> = {
  save: (x, y) => `M${x - 3},${y + 5}h6l-3,-5z`,
  evaluation: (x, y) => `M${x},${y - 3}l3,3l-3,3l-3,-3z`,
};
const UNDRAWN_MARKS = new Set(["start", "end", "reward_audit"]);

class LineChart {
  readonly element: HTMLElement;
  private readonly svg = s("svg", { class: "chart", height: HEIGHT, role: "img" });
  private readonly legend = h("div", { class: "legend" });
  private readonly heading = h("h3");
  private readonly sizeButton = h("button", { type: "button", class: "icon", onclick: () => this.element.popover === null ? this.enlarge() : this.element.hidePopover() });
  private readonly hover = s("g", { class: "hover" });
  private readonly overlay = s("rect", { class: "overlay" });
  private readonly selection = s("rect", { class: "selection", visibility: "hidden" });
  private readonly unsubscribe: () => void;
  private readonly observer: ResizeObserver;
  private x: ScaleLinear<number, number> = scaleLinear();
  private y: ScaleLinear<number, number> = scaleLinear();
  private width = 0;
  private height = HEIGHT;

  constructor(
    private spec: ChartSpec,
    private readonly cursor: Cursor,
    private readonly events: ChartEvents = {},
  ) {
    this.element = h("figure", { class: "panel" }, h("figcaption", {}, this.heading, this.sizeButton), this.legend, this.svg);
    this.element.addEventListener("toggle", (event) => { if ((event as ToggleEvent).newState === "closed") this.element.popover = null; this.resize(); });
    this.unsubscribe = cursor.subscribe(() => this.drawCursor());
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.element);
    this.listen();
    this.draw();
  }

  update(spec: ChartSpec): void {
    this.spec = spec;
    this.draw();
  }

  destroy(): void {
    this.unsubscribe();
    this.observer.disconnect();
  }

  private get bottom(): number {
    return this.height - MARGIN.bottom;
  }

  /** Show it above the page; Esc, the button and a click outside show it in its place again. */
  private enlarge(): void {
    this.element.popover = "auto";
    this.element.showPopover();
  }

  private resize(): void {
    const width = Math.floor(this.svg.getBoundingClientRect().width);
    const height = this.element.popover === null ? HEIGHT : Math.floor(Math.min(window.innerHeight * ENLARGED, Math.max(HEIGHT, width)));
    if (width <= 0 || (width === this.width && height === this.height)) return;
    [this.width, this.height] = [width, height];
    this.draw();
  }

  private isVisible(x: number): boolean {
    return x >= this.spec.from && x <= this.spec.to;
  }

  /** Student's interval of a share may reach beyond 0 and 1; a figure shows only what is possible. */
  private clamp(value: Value): Value {
    const { bounds } = this.spec;
    return value === null || !bounds ? value : Math.min(bounds[1], Math.max(bounds[0], value));
  }

  private draw(): void {
    const { spec } = this;
    replace(this.heading, spec.title, spec.unit ? h("span", { class: "unit" }, spec.unit) : null);
    if (spec.help) this.heading.title = spec.help;
    if (spec.id) this.element.id = spec.id;
    this.element.classList.toggle("selected", spec.isSelected === true);
    const isLarge = this.element.popover !== null;
    setAttributes(this.sizeButton, { "aria-label": `${isLarge ? "Close" : "Enlarge"}: ${spec.title}`, title: isLarge ? "Close (Esc)" : "Enlarge" });
    this.sizeButton.textContent = isLarge ? "✕" : "⤢";
    this.svg.setAttribute("aria-label", this.describe());
    this.drawCursor();
    if (!this.width) return;
    const values = spec.lines.flatMap((l) => [
      ...[...l.points, ...(l.raw ?? [])].filter((p) => this.isVisible(p[0])).map((p) => p[1]),
      ...(l.band ?? []).filter((b) => this.isVisible(b[0])).flatMap((b) => [this.clamp(b[1]), this.clamp(b[2])]),
    ]).filter((v): v is number => v !== null);
    const right = this.width - MARGIN.right;
    const plotWidth = Math.max(0, right - MARGIN.left);
    this.x = scaleLinear([spec.from, Math.max(spec.to, spec.from + 1)], [MARGIN.left + PAD, right]);
    this.y = scaleLinear(yDomain(values, spec.bounds), [this.bottom, MARGIN.top]).nice(4);
    setAttributes(this.svg, { viewBox: `0 0 ${this.width} ${this.height}`, height: this.height });
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    setAttributes(this.overlay, { x: MARGIN.left, y: 0, width: plotWidth, height: this.height });
    replace(
      this.svg,
      s("clipPath", { id: clip }, s("rect", { x: MARGIN.left - 10, y: 0, width: plotWidth + 20, height: this.bottom + 4 })),
      this.axes(right),
      s("g", { "clip-path": `url(#${clip})` }, spec.lines.map((l) => this.drawLine(l))),
      s("g", { class: "marks" }, (spec.marks ?? []).filter((m) => this.isVisible(m.step)).map((m) => this.drawMark(m))),
      this.selection,
      this.hover,
      this.overlay,
    );
    this.drawCursor();
  }

  private axes(right: number): SVGElement {
    const format = this.y.tickFormat(4, this.y.domain()[1]! >= 10_000 ? "~s" : undefined);
    const steps = this.x.ticks(Math.max(2, Math.floor(this.width / 90))).filter(Number.isInteger);
    const label = { y: this.bottom + 15, "text-anchor": "middle" };
    return s("g", { class: "axes" },
      this.y.ticks(4).flatMap((tick) => [
        s("line", { class: "grid", x1: MARGIN.left, x2: right, y1: this.y(tick), y2: this.y(tick) }),
        s("text", { x: MARGIN.left - 6, y: this.y(tick), dy: "0.32em", "text-anchor": "end" }, format(tick)),
      ]),
      s("line", { class: "axis", x1: MARGIN.left, x2: right, y1: this.bottom, y2: this.bottom }),
      steps.map((tick) => s("text", { x: this.x(tick), ...label }, this.spec.names?.[tick] ?? tick.toLocaleString("en-US"))),
      s("text", { class: "axis-label", x: MARGIN.left - 8, y: this.bottom + 15, "text-anchor": "end" }, "step"));
  }

  private drawLine(l: Line): SVGElement {
    const path = line<XY>().defined((p) => p[1] !== null).x((p) => this.x(p[0])).y((p) => this.y(p[1]!));
    const around = area<[number, Value, Value]>().defined((b) => b[1] !== null && b[2] !== null)
      .x((b) => this.x(b[0])).y0((b) => this.y(b[1]!)).y1((b) => this.y(b[2]!));
    const band = l.band?.map((b): [number, Value, Value] => [b[0], this.clamp(b[1]), this.clamp(b[2])]) ?? [];
    const known = l.points.filter((p) => p[1] !== null);
    const isLine = known.length > 1;
    const asWhiskers = l.dots || !isLine;
    const whiskers = band.filter((b) => asWhiskers && b[1] !== null && b[2] !== null);
    return s("g", { class: `line ${seriesClass(l)}${l.faint ? " faint" : ""}` },
      band.length && !asWhiskers ? s("path", { class: "band", d: around(band) }) : null,
      whiskers.map((b) => s("line", { class: "whisker", x1: this.x(b[0]), x2: this.x(b[0]), y1: this.y(b[1]!), y2: this.y(b[2]!) })),
      l.raw && isLine ? s("path", { class: "raw", d: path(l.raw) }) : null,
      isLine ? s("path", { class: "curve", d: path(l.points) }) : null,
      (l.dots && known.length <= MAX_DOTS) || !isLine ? known.map((p) => s("circle", { cx: this.x(p[0]), cy: this.y(p[1]!), r: 2.6 })) : null);
  }

  private drawMark(mark: Mark): SVGElement | null {
    if (UNDRAWN_MARKS.has(mark.kind)) return null;
    const x = this.x(mark.step);
    const text = s("title", {}, `${mark.kind} at step ${mark.step}: ${mark.text}`);
    const shape = AXIS_MARKS[mark.kind];
    if (shape) return s("path", { class: `mark ${mark.kind}`, d: shape(x, this.bottom) }, text);
    return s("g", { class: `mark ${mark.kind}` },
      s("line", { x1: x, x2: x, y1: MARGIN.top, y2: this.bottom }),
      s("text", { x, y: MARGIN.top + 2, "text-anchor": "middle" }, mark.kind === "resume" ? "↻" : "✕"), text);
  }

  /** The values under the cursor, or the last ones, in the legend; and the cursor itself. */
  private drawCursor(): void {
    const at = this.cursor.x;
    const lines = this.spec.lines.filter((l) => !l.faint).map((l) => ({ ...l, point: at === null ? last(l.points) : nearest(l.points, at) }));
    replace(this.legend, lines.map((l) => {
      const range = l.band?.find((b) => b[0] === l.point?.[0]);
      return h("span", { class: `key ${seriesClass(l)}` },
        h("i", { "aria-hidden": "true" }),
        this.spec.lines.length > 1 || l.name.toLowerCase() !== this.spec.title.toLowerCase() ? l.name : null,
        h("b", {}, l.point ? number(l.point[1]) : "–"),
        range && range[1] !== null && this.spec.lines.length <= 3 ? h("span", { class: "range" }, `${number(this.clamp(range[1]), 2)} to ${number(this.clamp(range[2]), 2)}`) : null,
        l.dots && l.point && at !== null && l.point[0] !== at ? h("span", { class: "range" }, `step ${l.point[0]}`) : null);
    }));
    if (!this.width || at === null || !this.isVisible(at)) return this.hover.replaceChildren();
    const x = this.x(at);
    replace(this.hover,
      s("line", { x1: x, x2: x, y1: MARGIN.top, y2: this.bottom }),
      lines.map((l) => (l.point && l.point[1] !== null ? s("circle", { class: `c${l.color % 8}`, cx: this.x(l.point[0]), cy: this.y(l.point[1]), r: 3.5 }) : null)));
  }

  private listen(): void {
    let start: number | null = null;
    const step = (event: PointerEvent): number => {
      const box = this.svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * this.width;
      return Math.min(this.spec.to, Math.max(this.spec.from, Math.round(this.x.invert(x))));
    };
    this.overlay.addEventListener("pointermove", (event) => {
      const at = step(event);
      this.cursor.set(at);
      if (start === null || !this.events.onzoom) return;
      const [a, b] = [this.x(Math.min(start, at)), this.x(Math.max(start, at))];
      setAttributes(this.selection, { x: a, y: 0, width: b - a, height: this.bottom, visibility: "visible" });
    });
    this.overlay.addEventListener("pointerleave", () => this.cursor.set(null));
    this.overlay.addEventListener("pointerdown", (event) => {
      start = step(event);
      this.overlay.setPointerCapture(event.pointerId);
    });
    this.overlay.addEventListener("pointerup", (event) => {
      const [from, to] = [start, step(event)];
      start = null;
      this.selection.setAttribute("visibility", "hidden");
      if (from === null) return;
      if (from !== to && Math.abs(this.x(to) - this.x(from)) > 6) this.events.onzoom?.(Math.min(from, to), Math.max(from, to));
      else this.events.onpick?.(to);
    });
  }

  private describe(): string {
    const parts = this.spec.lines.filter((l) => !l.faint).map((l) => {
      const first = l.points.find((p) => p[1] !== null);
      const end = last(l.points);
      if (!first || !end) return `${l.name}: no values`;
      return `${l.name}: ${number(first[1])} at step ${first[0]}, ${number(end[1])} at step ${end[0]}`;
    });
    return `${this.spec.title}${this.spec.unit ? ` (${this.spec.unit})` : ""} by step. ${parts.join("; ")}`;
  }
}

/** A grid of charts that share a cursor. A chart stays the same element while its values change. */
export class ChartGrid {
  readonly element: HTMLElement;
  private readonly charts = new Map<string, LineChart>();

  constructor(readonly cursor: Cursor, private readonly events: ChartEvents = {}, className = "panels") {
    this.element = h("div", { class: className });
  }

  show(specs: ChartSpec[]): void {
    const keyOf = (spec: ChartSpec): string => spec.id ?? spec.title;
    const wanted = new Set(specs.map(keyOf));
    this.charts.forEach((chart, key) => { if (!wanted.has(key)) this.remove(key, chart); });
    const elements = specs.map((spec) => {
      const chart = this.charts.get(keyOf(spec)) ?? new LineChart(spec, this.cursor, this.events);
      if (this.charts.has(keyOf(spec))) chart.update(spec);
      this.charts.set(keyOf(spec), chart);
      return chart.element;
    });
    if (elements.length !== this.element.children.length || elements.some((element, i) => this.element.children[i] !== element)) replace(this.element, elements);
  }

  destroy(): void {
    this.charts.forEach((chart, key) => this.remove(key, chart));
  }

  private remove(key: string, chart: LineChart): void {
    chart.destroy();
    this.charts.delete(key);
  }
}

/** Shares begin at 0 and end at 1, or earlier if all of them are small. */
function yDomain(values: number[], bounds: Bounds): [number, number] {
  if (bounds && bounds[0] === 0 && bounds[1] === 1) {
    const high = Math.max(0, ...values);
    return [Math.min(0, ...values), high > 0 && high < SMALL_SHARE ? high : 1];
  }
  if (!values.length) return [0, 1];
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low > 0 && low < 0.5 * high) low = 0;
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  return [low, high];
}

/** Lines with intervals are few and smooth: dashes tell those apart that lie on each other. */
function seriesClass(l: Line): string {
  return `c${l.color % 8}${l.band ? " dashed" : ""}`;
}

function nearest(points: XY[], x: number): XY | undefined {
  return points[bisectCenter(points.map((p) => p[0]), x)];
}

function last(points: XY[]): XY | undefined {
  return points.findLast((p) => p[1] !== null);
}

/** Exponential moving average over about `window` steps, without the bias of its start. */
export function smooth(points: XY[], window: number): XY[] {
  if (window <= 1) return points;
  const keep = 1 - 2 / (window + 1);
  let [sum, weight] = [0, 0];
  return points.map(([x, value]) => {
    if (value === null) return [x, null];
    sum = sum * keep + value;
    weight = weight * keep + 1;
    return [x, sum / weight];
  });
}
