// Accuracy against monitorability over training: one path per arm, its start marked.

import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import { h, replace, s } from "./dom";
import { figureMenu } from "./export";
import { number } from "./format";
import type { Value } from "./types";

export interface PathPoint { step: number; x: number; y: number; xLow: Value; xHigh: Value; yLow: Value; yHigh: Value }
export interface Path { name: string; color: number; points: PathPoint[] }

const [HEIGHT, MARGIN] = [320, { left: 52, right: 16, top: 12, bottom: 38 }];

export function scatter(title: string, xLabel: string, yLabel: string, paths: Path[]): HTMLElement {
  const svg = s("svg", { class: "chart scatter", height: HEIGHT, role: "img" });
  const draw = (): void => {
    const width = Math.max(240, Math.floor(svg.getBoundingClientRect().width));
    const points = paths.flatMap((p) => p.points);
    const extent = (values: Value[]): [number, number] => {
      const known = values.filter((v): v is number => v !== null);
      const [low, high] = [Math.min(...known), Math.max(...known)];
      return low >= 0 && high <= 1 ? [0, 1] : [low, high];
    };
    const x = scaleLinear(extent(points.flatMap((p) => [p.x, p.xLow, p.xHigh])), [MARGIN.left, width - MARGIN.right]).nice();
    const y = scaleLinear(extent(points.flatMap((p) => [p.y, p.yLow, p.yHigh])), [HEIGHT - MARGIN.bottom, MARGIN.top]).nice();
    const bottom = HEIGHT - MARGIN.bottom;
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.setAttribute("aria-label", `${title}. ${paths.map((p) => `${p.name}: from ${number(p.points[0]?.x)}, ${number(p.points[0]?.y)} to ${number(p.points.at(-1)?.x)}, ${number(p.points.at(-1)?.y)}`).join("; ")}`);
    replace(svg,
      s("g", { class: "axes" },
        y.ticks(5).map((t) => [s("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(t), y2: y(t) }), s("text", { x: MARGIN.left - 6, y: y(t), dy: "0.32em", "text-anchor": "end" }, y.tickFormat(5)(t))]).flat(),
        x.ticks(6).map((t) => [s("line", { class: "grid", x1: x(t), x2: x(t), y1: MARGIN.top, y2: bottom }), s("text", { x: x(t), y: bottom + 15, "text-anchor": "middle" }, x.tickFormat(6)(t))]).flat(),
        s("text", { class: "axis-label", x: width - MARGIN.right, y: HEIGHT - 4, "text-anchor": "end" }, xLabel),
        s("text", { class: "axis-label", x: 4, y: MARGIN.top - 2 }, yLabel)),
      paths.map((path) => s("g", { class: `line c${path.color % 8}` },
        path.points.map((p) => [
          p.xLow !== null && p.xHigh !== null ? s("line", { class: "whisker", x1: x(p.xLow), x2: x(p.xHigh), y1: y(p.y), y2: y(p.y) }) : null,
          p.yLow !== null && p.yHigh !== null ? s("line", { class: "whisker", x1: x(p.x), x2: x(p.x), y1: y(p.yLow), y2: y(p.yHigh) }) : null,
        ]).flat(),
        s("path", { class: "curve", d: line<PathPoint>().x((p) => x(p.x)).y((p) => y(p.y))(path.points) }),
        path.points.map((p, i) => s("circle", { class: i === 0 ? "start" : "", cx: x(p.x), cy: y(p.y), r: i === 0 ? 5.5 : 2.8 }, s("title", {}, `${path.name}, step ${p.step}: ${xLabel} ${number(p.x)}, ${yLabel} ${number(p.y)}`))))),
    );
  };
  new ResizeObserver(draw).observe(svg);
  return h("figure", { class: "panel wide" },
    h("figcaption", {}, h("h3", {}, title, h("span", { class: "unit" }, "95 % intervals; ring: start")), figureMenu(title, () => svg, () => ({
      columns: ["arm", "step", xLabel, yLabel], rows: paths.flatMap((path) => path.points.map((p) => [path.name, p.step, p.x, p.y])),
    }))),
    h("div", { class: "legend" }, paths.map((p) => h("span", { class: `key c${p.color % 8}` }, h("i", { "aria-hidden": "true" }), p.name))),
    svg);
}
