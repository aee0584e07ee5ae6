// The histogram of rewards: drag across it to select a range; arrow keys move the limits.

import { scaleLinear } from "d3-scale";
import { h, replace, s, setAttributes } from "./dom";
import { figureMenu } from "./export";
import { count, number } from "./format";
import type { RolloutPage } from "./types";

const HEIGHT = 96;
const MARGIN = { left: 8, right: 8, top: 6, bottom: 20 };

export class Histogram {
  readonly element: HTMLElement;
  private readonly svg = s("svg", { class: "chart histogram", height: HEIGHT, role: "img" });
  private readonly low = h("input", { type: "number", step: "any", "aria-label": "Smallest reward" });
  private readonly high = h("input", { type: "number", step: "any", "aria-label": "Largest reward" });
  private readonly note = h("span", { class: "muted" });
  private data: RolloutPage["histogram"] = { edges: [], all: [], selected: [] };
  private start: number | null = null;
  private width = 260;

  constructor(private readonly onselect: (low: number | null, high: number | null) => void) {
    const limits = (): void => onselect(this.low.value === "" ? null : Number(this.low.value), this.high.value === "" ? null : Number(this.high.value));
    this.low.addEventListener("change", limits);
    this.high.addEventListener("change", limits);
    this.element = h("figure", { class: "panel histogram-panel" },
      h("figcaption", {}, h("h3", {}, "Reward"), this.note, figureMenu("rewards", () => this.svg, () => ({
        columns: ["from", "to", "rollouts", "selected"],
        rows: this.data.all.map((n, i) => [this.data.edges[i], this.data.edges[i + 1], n, this.data.selected[i]]),
      }))),
      this.svg,
      h("div", { class: "limits" }, this.low, h("span", {}, "to"), this.high, h("button", { type: "button", onclick: () => onselect(null, null) }, "All")),
    );
    new ResizeObserver(() => {
      const width = Math.floor(this.svg.getBoundingClientRect().width);
      if (width && width !== this.width) { this.width = width; this.draw(); }
    }).observe(this.svg);
    this.brush();
  }

  update(data: RolloutPage["histogram"], low: string | null, high: string | null): void {
    this.data = data;
    if (document.activeElement !== this.low) this.low.value = low ?? "";
    if (document.activeElement !== this.high) this.high.value = high ?? "";
    this.note.textContent = low !== null || high !== null ? "range selected" : "drag to filter";
    this.draw();
  }

  private scale(): (value: number) => number {
    const { edges } = this.data;
    return scaleLinear([edges[0] ?? 0, edges.at(-1) ?? 1], [MARGIN.left, this.width - MARGIN.right]);
  }

  private draw(): void {
    const { edges, all, selected } = this.data;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    if (!edges.length) {
      replace(this.svg, s("text", { x: this.width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "no rewards"));
      return;
    }
    const x = this.scale();
    const y = scaleLinear([0, Math.sqrt(Math.max(...all))], [HEIGHT - MARGIN.bottom, MARGIN.top]);
    const bar = (n: number, i: number, kind: string): SVGElement | null =>
      n ? s("rect", { class: kind, x: x(edges[i]!) + 0.5, width: Math.max(1.5, x(edges[i + 1]!) - x(edges[i]!) - 1), y: Math.min(y(Math.sqrt(n)), HEIGHT - MARGIN.bottom - 2), height: Math.max(2, HEIGHT - MARGIN.bottom - y(Math.sqrt(n))) },
        s("title", {}, `${number(edges[i]!)} to ${number(edges[i + 1]!)}: ${count(n)} rollouts`)) : null;
    this.svg.setAttribute("aria-label", `Histogram of rewards from ${number(edges[0])} to ${number(edges.at(-1))}; the height is the square root of the number of rollouts`);
    replace(this.svg,
      all.map((n, i) => bar(n, i, "bar-all")),
      selected.map((n, i) => bar(n, i, "bar-selected")),
      s("line", { class: "axis", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: HEIGHT - MARGIN.bottom, y2: HEIGHT - MARGIN.bottom }),
      s("text", { x: MARGIN.left, y: HEIGHT - 5 }, number(edges[0], 2)),
      s("text", { x: this.width - MARGIN.right, y: HEIGHT - 5, "text-anchor": "end" }, number(edges.at(-1), 2)),
      s("text", { class: "axis-label", x: this.width / 2, y: HEIGHT - 5, "text-anchor": "middle" }, "height: √ rollouts"),
      s("rect", { class: "selection", id: "reward-selection", visibility: "hidden" }),
    );
  }

  private brush(): void {
    const value = (event: PointerEvent): number => {
      const box = this.svg.getBoundingClientRect();
      const { edges } = this.data;
      const share = ((event.clientX - box.left) / box.width * this.width - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right);
      return (edges[0] ?? 0) + Math.max(0, Math.min(1, share)) * ((edges.at(-1) ?? 1) - (edges[0] ?? 0));
    };
    this.svg.addEventListener("pointerdown", (event) => {
      this.start = value(event);
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      const mark = this.svg.querySelector("#reward-selection");
      if (this.start === null || !mark) return;
      const x = this.scale();
      const [a, b] = [x(Math.min(this.start, value(event))), x(Math.max(this.start, value(event)))];
      setAttributes(mark, { x: a, y: 0, width: b - a, height: HEIGHT - MARGIN.bottom, visibility: "visible" });
    });
    this.svg.addEventListener("pointerup", (event) => {
      if (this.start === null) return;
      const [a, b] = [Math.min(this.start, value(event)), Math.max(this.start, value(event))];
      this.start = null;
      const { edges } = this.data;
      const wide = b - a > ((edges.at(-1) ?? 1) - (edges[0] ?? 0)) / 100;
      this.onselect(wide ? Number(a.toFixed(4)) : null, wide ? Number(b.toFixed(4)) : null);
    });
  }
}
