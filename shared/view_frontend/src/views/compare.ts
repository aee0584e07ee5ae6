// Several runs: configuration differences first, then curves by arm with a band over seeds.

import { get } from "../api";
import { Cursor, LineChart, smooth, type Line } from "../chart";
import { h, notice, replace, select, show, type View } from "../dom";
import { plural } from "../format";
import { current, link, setParams } from "../router";
import type { Comparison } from "../types";
import { headings, smoothing, statusBadge, tableRegion } from "./parts";

const SHOWN_CURVES = 6;

export function compareView(root: HTMLElement): View {
  const cursor = new Cursor();
  let charts: LineChart[] = [];
  let data: Comparison | null = null;
  let asked: string | null = null;
  replace(root, notice("loading", "Comparing the runs…"));

  const load = async (): Promise<void> => {
    const key = current().params.get("runs") ?? "";
    if (key === asked) return draw();
    asked = key;
    const runs = key.split("|").filter(Boolean);
    if (!runs.length) {
      replace(root, h("h1", {}, "Compare"), notice("empty", "No runs are picked.", h("a", { href: link("runs") }, "Pick runs in the list."), " A study has its own page."));
      return;
    }
    await show(root, get<Comparison>("compare", { run: runs }), (answer) => { data = answer; draw(); }, "The runs cannot be compared.");
  };

  const draw = (): void => {
    if (!data) return;
    const { params } = current();
    const { curves } = data;
    charts.forEach((chart) => chart.destroy());
    const arms = [...new Set(data.runs.map((r) => r.arm))];
    const chosen = params.get("measures")?.split("|") ?? Object.keys(curves).slice(0, SHOWN_CURVES);
    const measures = chosen.filter((id) => id in curves);
    const window = Number(params.get("smooth") ?? 1);
    charts = measures.map((id) => chartOf(data!, id, arms, cursor, window));
    const choice = (ids: string[]): [string, string][] => [["", "a curve…"], ...ids.map((id): [string, string] => [id, `${curves[id]!.label} (${id})`])];
    replace(root,
      h("div", { class: "title-row" }, h("h1", {}, "Compare"), h("p", { class: "muted" }, `${plural(data.runs.length, "run")} in ${plural(arms.length, "arm")}`)),
      h("p", { class: "lead" }, data.verdict),
      data.left_out ? notice("empty", `${plural(data.left_out, "more run")} left out.`, "At most 40 runs are compared at once.") : null,
      h("section", {}, h("h2", {}, "What differs"), differences(data)),
      h("section", {}, h("h2", {}, "Curves"),
        h("div", { class: "toolbar" },
          select("Add", "", choice(Object.keys(curves).filter((id) => !measures.includes(id))), (id) => setParams({ measures: [...measures, id].join("|") })),
          select("Remove", "", choice(measures), (id) => setParams({ measures: measures.filter((m) => m !== id).join("|") })),
          smoothing(window),
          h("span", { class: "hint" }, "Thick: mean over seeds with its 95 % interval. Thin: single runs.")),
        h("div", { class: "panels" }, charts.map((c) => c.element))),
      h("section", {}, h("h2", {}, "Runs"), h("ul", { class: "run-links" }, data.runs.map((r) => h("li", {}, h("a", { href: link("run", r.id) }, r.id), statusBadge(r.status), h("span", { class: "muted" }, `arm ${r.arm}, seed ${r.seed}`))))),
    );
  };

  void load();
  return { update: () => void load(), destroy: () => charts.forEach((chart) => chart.destroy()) };
}

function differences(data: Comparison): HTMLElement {
  if (!data.differences.length) return notice("empty", "The configurations are equal.");
  const text = (value: unknown): string => (value === undefined || value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  return tableRegion("Configuration differences", headings(["key", ...data.runs.map((r) => r.id)], Infinity),
    data.differences.map((d) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, d.key)), data.runs.map((r) => h("td", {}, text(d.values[r.id]))))), "diff");
}

function chartOf(data: Comparison, id: string, arms: string[], cursor: Cursor, window: number): LineChart {
  const curve = data.curves[id]!;
  const lines: Line[] = [];
  for (const [arm, { runs, band }] of Object.entries(curve.arms)) {
    const add = (name: string, points: typeof band, options: Partial<Line>): void => {
      lines.push({ name, color: arms.indexOf(arm), points: smooth(points.map((p) => [p[0], p[1]]), window), ...options });
    };
    const interval = (points: typeof band): Line["band"] => points.map((p) => [p[0], p[2], p[3]]);
    for (const { run, points } of runs) {
      if (band.length) add(run, points, { faint: true });
      else add(arm, points, id.startsWith("train.") ? {} : { dots: true, band: interval(points) });
    }
    if (band.length) add(arm, band, { band: interval(band) });
  }
  const steps = lines.flatMap((l) => l.points.map((p) => p[0]));
  return new LineChart({ title: curve.label, unit: curve.unit, bounds: curve.bounds, lines, from: Math.min(...steps), to: Math.max(...steps, 1), help: id }, cursor);
}
