import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import { s } from "./dom";
import { MIN_LINE_POINTS, yDomain, type XY } from "./series";

/** A small curve without axes, for a table. */
export function sparkline(points: XY[], label: string, bounds: [number, number] | null, color = 0): SVGSVGElement {
  const [width, height] = [72, 26];
  const known = points.filter((p) => p[1] !== null);
  const svg = s("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  if (!known.length) return svg;
  const xs = known.map((p) => p[0]);
  const [low, high] = yDomain(known.map((p) => p[1]!), bounds);
  const x = scaleLinear([Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1)], [2, width - 4]);
  const y = scaleLinear([low, high], [height - 3, 3]);
  const path = line<XY>().x((p) => x(p[0])).y((p) => y(p[1]!));
  const isLine = known.length >= MIN_LINE_POINTS;
  svg.append(
    s("g", { class: `line c${color}` }, isLine ? s("path", { class: "curve", d: path(known) }) : null,
      (isLine ? known.slice(-1) : known).map((p) => s("circle", { cx: x(p[0]), cy: y(p[1]!), r: 2.4 }))),
  );
  return svg;
}
