// Several runs: configuration differences first, then curves by arm with a band over seeds.

import { get } from "../api";
import { Cursor, LineChart, type Line } from "../chart";
import { smooth } from "../series";
import { h, notice, replace, select, show, tableRegion } from "../dom";
import { tableButtons, type Table } from "../export";
import { plural } from "../format";
import { current, link, setParams } from "../router";
import { scatter, type Path } from "../scatter";
import type { Comparison } from "../types";
import type { View } from "../view";
import { statusBadge } from "./runs";

export function compareView(root: HTMLElement): View {
  const cursor = new Cursor();
  let charts: LineChart[] = [];
  let data: Comparison | null = null;
  let asked: string | null = null;
  replace(root, notice("loading", "Comparing the runs…"));

  const load = async (): Promise<void> => {
    const runs = (current().params.get("runs") ?? "").split("|").filter(Boolean);
    const key = runs.join("|");
    if (key === asked) return draw();
    asked = key;
    if (!runs.length) {
      replace(root, h("h1", {}, "Compare"), notice("empty", "No runs are picked.", h("a", { href: link("runs") }, "Pick runs in the list."), " A study has its own page."));
      return;
    }
    await show(root, get<Comparison>("compare", { run: runs }), (answer) => { data = answer; draw(); }, "The runs cannot be compared.");
  };

  const draw = (): void => {
    if (!data) return;
    const { params } = current();
    charts.forEach((chart) => chart.destroy());
    const arms = [...new Set(data.runs.map((r) => r.arm))];
    const order = Object.keys(data.curves);
    const asked = params.get("measures")?.split("|") ?? order.slice(0, 6);
    const measures = asked.filter((id) => order.includes(id));
    const window = Number(params.get("smooth") ?? 1);
    charts = measures.map((id) => chartOf(data!, id, arms, cursor, window));
    const monitors = order.filter((id) => !id.startsWith("evaluation.") && !id.startsWith("train."));
    const against = params.get("against") ?? monitors[0] ?? "";
    const more: [string, string][] = [["", "add a curve…"], ...order.filter((id) => !measures.includes(id)).map((id): [string, string] => [id, data!.curves[id]!.label + (id.includes(".") ? ` (${id})` : "")])];
    replace(root,
      h("div", { class: "title-row" }, h("h1", {}, "Compare"), h("p", { class: "muted" }, `${plural(data.runs.length, "run")} in ${plural(arms.length, "arm")}`)),
      h("p", { class: "lead" }, data.verdict),
      data.left_out ? notice("empty", `${plural(data.left_out, "more run")} left out.`, "At most 40 runs are compared at once.") : null,
      h("section", {}, h("h2", {}, "What differs"), differences(data)),
      h("section", {}, h("h2", {}, "Curves"),
        h("div", { class: "toolbar" },
          select("Curve", "", more, (id) => { if (id) setParams({ measures: [...measures, id].join("|") }); }),
          measures.length ? select("Remove", "", [["", "a curve…"], ...measures.map((id): [string, string] => [id, data!.curves[id]!.label])], (id) => { if (id) setParams({ measures: measures.filter((m) => m !== id).join("|") }); }) : null,
          select("Smoothing", String(window), [["1", "none"], ["5", "5 steps"], ["20", "20 steps"], ["50", "50 steps"]], (v) => setParams({ smooth: v === "1" ? null : v })),
          h("span", { class: "hint" }, "Thick: mean over seeds with its 95 % interval. Thin: single runs.")),
        h("div", { class: "panels" }, charts.map((c) => c.element))),
      monitors.length ? h("section", {}, h("h2", {}, "Accuracy against monitorability"),
        h("div", { class: "toolbar" }, select("Measure", against, monitors.map((id): [string, string] => [id, `${data!.curves[id]!.label} (${id})`]), (v) => setParams({ against: v }))),
        scatterOf(data, against, arms)) : null,
      h("section", {}, h("h2", {}, "Runs"), h("ul", { class: "run-links" }, data.runs.map((r) => h("li", {}, h("a", { href: link("run", r.id) }, r.id), statusBadge(r.status), h("span", { class: "muted" }, `arm ${r.arm}, seed ${r.seed}`))))),
    );
  };

  void load();
  return { update: () => void load(), destroy: () => charts.forEach((chart) => chart.destroy()) };
}

function differences(data: Comparison): HTMLElement {
  const text = (value: unknown): string => (value === undefined || value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  const table: Table = { columns: ["key", ...data.runs.map((r) => r.id)], rows: data.differences.map((d) => [d.key, ...data.runs.map((r) => text(d.values[r.id]))]) };
  if (!data.differences.length) return notice("empty", "The configurations are equal.");
  return h("div", {},
    tableRegion("Configuration differences", table.columns.map((c) => h("th", { scope: "col" }, c)),
      table.rows.map((row) => h("tr", {}, row.map((cell, i) => (i ? h("td", {}, String(cell)) : h("th", { scope: "row" }, h("code", {}, String(cell))))))), "diff"),
    h("div", { class: "toolbar slim" }, tableButtons("differences", () => table)));
}

export function chartOf(data: Comparison, id: string, arms: string[], cursor: Cursor, window: number): LineChart {
  const curve = data.curves[id]!;
  const lines: Line[] = [];
  let [from, to] = [Infinity, 1];
  for (const [arm, entry] of Object.entries(curve.arms)) {
    const color = Math.max(0, arms.indexOf(arm));
    const dots = entry.runs.every((r) => r.points.length <= 60) && !id.startsWith("train.");
    for (const run of entry.runs) {
      run.points.forEach((p) => { from = Math.min(from, p[0]); to = Math.max(to, p[0]); });
      const points = smooth(run.points.map((p): [number, number | null] => [p[0], p[1]]), window);
      const single = !entry.band.length;
      lines.push({ name: single ? arm : run.run, color, points, faint: !single, dots: single && dots, whiskers: true, ...(single && dots ? { band: run.points.map((p): [number, number | null, number | null] => [p[0], p[2], p[3]]) } : {}) });
    }
    if (entry.band.length) {
      lines.push({ name: arm, color, dots, points: smooth(entry.band.map((b): [number, number | null] => [b[0], b[1]]), window), band: entry.band.map((b) => [b[0], b[2], b[3]]) });
    }
  }
  return new LineChart({ title: curve.label, unit: curve.unit, bounds: curve.bounds, lines, from: Number.isFinite(from) ? from : 0, to, help: id }, cursor);
}

function scatterOf(data: Comparison, id: string, arms: string[]): HTMLElement {
  const [accuracy, measure] = [Object.entries(data.curves).find(([name]) => name.startsWith("evaluation."))?.[1], data.curves[id]];
  if (!accuracy || !measure) return notice("empty", "There is nothing to draw.", "Both accuracy and the measure are needed at the same steps.");
  const paths: Path[] = [];
  for (const [arm, entry] of Object.entries(measure.arms)) {
    const other = accuracy.arms[arm];
    if (!other) continue;
    const xs = new Map((other.band.length ? other.band : other.runs[0]?.points ?? []).map((p) => [p[0], p]));
    const ys = entry.band.length ? entry.band : entry.runs[0]?.points ?? [];
    const points = ys.flatMap((p) => {
      const x = xs.get(p[0]);
      return x && x[1] !== null && p[1] !== null ? [{ step: p[0], x: x[1], y: p[1], xLow: x[2], xHigh: x[3], yLow: p[2], yHigh: p[3] }] : [];
    });
    if (points.length) paths.push({ name: arm, color: Math.max(0, arms.indexOf(arm)), points });
  }
  return paths.length ? scatter(`${accuracy.label} against ${measure.label}`, accuracy.label, measure.label, paths) : notice("empty", "There is nothing to draw.", "No step has both accuracy and this measure.");
}
