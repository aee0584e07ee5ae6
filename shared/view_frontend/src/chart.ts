// Line charts in SVG that share one step axis: hovering one reads all, dragging zooms all.

import { scaleLinear, type ScaleLinear } from "d3-scale";
import { area, line } from "d3-shape";
import { h, replace, s, setAttributes } from "./dom";
import { figureMenu, type Table } from "./export";
import { number } from "./format";
import { clampTo, last, MIN_LINE_POINTS, nearest, thin, yDomain, type XY } from "./series";
import type { Mark, Value } from "./types";

export interface Line {
  name: string;
  /** Number of its colour, 0 to 7. */
  color: number;
  points: XY[];
  /** Unsmoothed values, drawn behind the line. */
  raw?: XY[];
  /** Interval at each x. */
  band?: [number, Value, Value][];
  /** Draw points, as for a few evaluations. */
  dots?: boolean;
  /** Draw intervals as vertical lines instead of a band. */
  whiskers?: boolean;
  /** A single run behind its arm's mean. */
  faint?: boolean;
  dashed?: boolean;
}

export interface ChartSpec {
  title: string;
  unit: string;
  help?: string;
  bounds?: [number, number] | null;
  lines: Line[];
  marks?: Mark[];
  from: number;
  to: number;
  xLabel?: string;
}

export interface ChartEvents {
  onpick?: (x: number) => void;
  onzoom?: (from: number, to: number) => void;
}

/** The step under the pointer, shared by all charts of a page. */
export class Cursor {
  x: number | null = null;
  private readonly listeners = new Set<(x: number | null) => void>();

  set(x: number | null): void {
    if (x === this.x) return;
    this.x = x;
    this.listeners.forEach((listener) => listener(x));
  }

  subscribe(listener: (x: number | null) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

const MARGIN = { left: 46, right: 12, top: 8, bottom: 22 };
const HEIGHT = 168;
const MAX_DOTS = 60;
/** Pixels between the intervals of neighbouring lines, which would hide each other. */
const DODGE = 3;
/** Marks of ordinary events, below the axis; others are vertical lines. */
const AXIS_MARKS: Record<string, (x: number, y: number) => string> = {
  save: (x, y) => `M${x - 3},${y + 5}h6l-3,-5z`,
  evaluation: (x, y) => `M${x},${y - 3}l3,3l-3,3l-3,-3z`,
};
const UNDRAWN_MARKS = new Set(["start", "end"]);

export class LineChart {
  readonly element: HTMLElement;
  readonly svg: SVGSVGElement;
  private readonly legend = h("div", { class: "legend" });
  private readonly heading = h("h3");
  private readonly hover = s("g", { class: "hover" });
  private readonly overlay = s("rect", { class: "overlay" });
  private readonly selection = s("rect", { class: "selection", visibility: "hidden" });
  private readonly unsubscribe: () => void;
  private readonly observer: ResizeObserver;
  private x: ScaleLinear<number, number> = scaleLinear();
  private y: ScaleLinear<number, number> = scaleLinear();
  private width = 0;
  private dragStart: number | null = null;

  constructor(
    private spec: ChartSpec,
    private readonly cursor: Cursor,
    private readonly events: ChartEvents = {},
  ) {
    this.svg = s("svg", { class: "chart", height: HEIGHT, role: "img" });
    const menu = figureMenu(spec.title, () => this.svg, () => this.table());
    this.element = h("figure", { class: "panel" }, h("figcaption", {}, this.heading, menu), this.legend, this.svg);
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

  private resize(): void {
    const width = Math.floor(this.svg.getBoundingClientRect().width);
    if (width > 0 && width !== this.width) {
      this.width = width;
      this.draw();
    }
  }

  private draw(): void {
    const { spec } = this;
    replace(this.heading, spec.title, spec.unit ? h("span", { class: "unit" }, spec.unit) : null);
    if (spec.help) this.heading.title = spec.help;
    this.svg.setAttribute("aria-label", this.describe());
    if (!this.width) {
      this.drawCursor();
      return;
    }
    const clamp = clampTo(spec.bounds ?? null);
    const visible = (p: XY): boolean => p[0] >= spec.from && p[0] <= spec.to && p[1] !== null;
    const values = spec.lines.flatMap((l) => [
      ...l.points.filter(visible).map((p) => p[1]!),
      ...(l.raw ?? []).filter(visible).map((p) => p[1]!),
      ...(l.band ?? []).filter((b) => b[0] >= spec.from && b[0] <= spec.to).flatMap((b) => [clamp(b[1]), clamp(b[2])]),
    ]).filter((v): v is number => v !== null);
    const right = this.width - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    const to = spec.to > spec.from ? spec.to : spec.from + 1;
    this.x = scaleLinear([spec.from, to], [MARGIN.left, right]);
    this.y = scaleLinear(yDomain(values, spec.bounds ?? null), [bottom, MARGIN.top]).nice(4);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    setAttributes(this.overlay, { x: MARGIN.left, y: 0, width: Math.max(0, right - MARGIN.left), height: HEIGHT });
    replace(
      this.svg,
      s("clipPath", { id: clip }, s("rect", { x: MARGIN.left - 10, y: 0, width: Math.max(0, right - MARGIN.left) + 20, height: bottom + 4 })),
      this.axes(bottom, right),
      s("g", { "clip-path": `url(#${clip})` }, spec.lines.map((l, i) => this.drawLine(l, l.whiskers ? (i - (spec.lines.length - 1) / 2) * DODGE : 0))),
      this.drawMarks(bottom),
      this.selection,
      this.hover,
      this.overlay,
    );
    this.drawCursor();
  }

  private axes(bottom: number, right: number): SVGElement {
    const yTicks = this.y.ticks(4);
    const yFormat = this.y.tickFormat(4);
    const xTicks = this.x.ticks(Math.max(2, Math.floor(this.width / 90))).filter(Number.isInteger);
    return s(
      "g",
      { class: "axes" },
      yTicks.map((tick) => [
        s("line", { class: "grid", x1: MARGIN.left, x2: right, y1: this.y(tick), y2: this.y(tick) }),
        s("text", { x: MARGIN.left - 6, y: this.y(tick), dy: "0.32em", "text-anchor": "end" }, yFormat(tick)),
      ]).flat(),
      s("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }),
      xTicks.map((tick) =>
        s("text", { x: this.x(tick), y: bottom + 15, "text-anchor": "middle" }, tick.toLocaleString("en-US")),
      ),
      s("text", { class: "axis-label", x: MARGIN.left - 8, y: bottom + 15, "text-anchor": "end" }, this.spec.xLabel ?? "step"),
    );
  }

  private drawLine(l: Line, shift: number): SVGElement {
    const path = line<XY>().defined((p) => p[1] !== null).x((p) => this.x(p[0]) + shift).y((p) => this.y(p[1]!));
    const around = area<[number, Value, Value]>()
      .defined((b) => b[1] !== null && b[2] !== null)
      .x((b) => this.x(b[0])).y0((b) => this.y(b[1]!)).y1((b) => this.y(b[2]!));
    const clamp = clampTo(this.spec.bounds ?? null);
    const band = l.band?.map((b): [number, Value, Value] => [b[0], clamp(b[1]), clamp(b[2])]);
    const known = l.points.filter((p) => p[1] !== null);
    const isLine = known.length >= MIN_LINE_POINTS;
    const dots = (l.dots && known.length <= MAX_DOTS) || !isLine;
    return s(
      "g",
      { class: `line c${l.color % 8}${l.faint ? " faint" : ""}${l.dashed ? " dashed" : ""}` },
      band && isLine && !l.whiskers ? s("path", { class: "band", d: around(band) }) : null,
      band && (l.whiskers || !isLine)
        ? band.map((b) => b[1] === null || b[2] === null ? null
            : s("line", { class: "whisker", x1: this.x(b[0]) + shift, x2: this.x(b[0]) + shift, y1: this.y(b[1]), y2: this.y(b[2]) }))
        : null,
      l.raw && isLine ? s("path", { class: "raw", d: path(thin(l.raw, this.spec.from, this.spec.to)) }) : null,
      isLine ? s("path", { class: "curve", d: path(thin(l.points, this.spec.from, this.spec.to)) }) : null,
      dots
        ? known.map((p) => s("circle", { cx: this.x(p[0]) + shift, cy: this.y(p[1]!), r: 2.6 }))
        : null,
    );
  }

  private drawMarks(bottom: number): SVGElement {
    const marks = (this.spec.marks ?? []).filter((m) => m.step >= this.spec.from && m.step <= this.spec.to);
    return s(
      "g",
      { class: "marks" },
      marks.map((mark) => {
        const x = this.x(mark.step);
        const text = s("title", {}, `${mark.kind} at step ${mark.step}: ${mark.text}`);
        const shape = AXIS_MARKS[mark.kind];
        if (shape) return s("path", { class: `mark ${mark.kind}`, d: shape(x, bottom) }, text);
        if (UNDRAWN_MARKS.has(mark.kind)) return null;
        return s(
          "g",
          { class: `mark ${mark.kind}` },
          s("line", { x1: x, x2: x, y1: MARGIN.top, y2: bottom }),
          s("text", { x, y: MARGIN.top + 2, "text-anchor": "middle" }, mark.kind === "resume" ? "↻" : "✕"),
          text,
        );
      }),
    );
  }

  private drawCursor(): void {
    const at = this.cursor.x;
    const clamp = clampTo(this.spec.bounds ?? null);
    const inside = at !== null && at >= this.spec.from && at <= this.spec.to;
    this.legend.replaceChildren(
      ...this.spec.lines.filter((l) => !l.faint).map((l) => {
        const point = at === null ? last(l.points) : nearest(l.points, at);
        const range = point && l.band?.find((b) => b[0] === point[0]);
        return h(
          "span",
          { class: `key c${l.color % 8}` },
          h("i", { "aria-hidden": "true" }),
          this.spec.lines.length > 1 || l.name.toLowerCase() !== this.spec.title.toLowerCase() ? l.name : null,
          h("b", {}, point ? number(point[1]) : "–"),
          range && range[1] !== null && this.spec.lines.length <= 3 ? h("span", { class: "range" }, `${number(clamp(range[1]), 2)} to ${number(clamp(range[2]), 2)}`) : null,
          l.dots && point && at !== null && point[0] !== at ? h("span", { class: "range" }, `step ${point[0]}`) : null,
        );
      }),
    );
    if (!this.width || !inside) {
      this.hover.replaceChildren();
      return;
    }
    const x = this.x(at);
    replace(
      this.hover,
      s("line", { x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
      this.spec.lines.filter((l) => !l.faint).map((l) => {
        const point = nearest(l.points, at);
        return point && point[1] !== null
          ? s("circle", { class: `c${l.color % 8}`, cx: this.x(point[0]), cy: this.y(point[1]), r: 3.5 })
          : null;
      }),
    );
  }

  private listen(): void {
    const step = (event: PointerEvent): number => {
      const box = this.svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * this.width;
      return Math.min(this.spec.to, Math.max(this.spec.from, Math.round(this.x.invert(x))));
    };
    this.overlay.addEventListener("pointermove", (event) => {
      const at = step(event);
      this.cursor.set(at);
      if (this.dragStart !== null && this.events.onzoom) {
        const [a, b] = [this.x(Math.min(this.dragStart, at)), this.x(Math.max(this.dragStart, at))];
        setAttributes(this.selection, { x: a, y: 0, width: b - a, height: HEIGHT - MARGIN.bottom, visibility: "visible" });
      }
    });
    this.overlay.addEventListener("pointerleave", () => this.cursor.set(null));
    this.overlay.addEventListener("pointerdown", (event) => {
      this.dragStart = step(event);
      this.overlay.setPointerCapture(event.pointerId);
    });
    this.overlay.addEventListener("pointerup", (event) => {
      const [start, end] = [this.dragStart, step(event)];
      this.dragStart = null;
      this.selection.setAttribute("visibility", "hidden");
      if (start === null) return;
      if (Math.abs(this.x(end) - this.x(start)) > 6 && start !== end) {
        this.events.onzoom?.(Math.min(start, end), Math.max(start, end));
      } else this.events.onpick?.(end);
    });
  }

  table(): Table {
    const steps = [...new Set(this.spec.lines.flatMap((l) => l.points.map((p) => p[0])))].sort((a, b) => a - b);
    const columns = this.spec.lines.flatMap((l) => (l.band ? [l.name, `${l.name} low`, `${l.name} high`] : [l.name]));
    const tables = this.spec.lines.map((l) => ({
      points: new Map((l.raw ?? l.points).map((p) => [p[0], p[1]])),
      band: l.band ? new Map(l.band.map((b) => [b[0], b])) : null,
    }));
    return {
      columns: [this.spec.xLabel ?? "step", ...columns],
      rows: steps.map((x) => [
        x,
        ...tables.flatMap((t) =>
          t.band ? [t.points.get(x), t.band.get(x)?.[1], t.band.get(x)?.[2]] : [t.points.get(x)],
        ),
      ]),
    };
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
