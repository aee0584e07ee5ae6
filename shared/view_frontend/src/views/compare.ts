// Several runs: the last values of each arm, configuration differences, then curves by arm with a band over seeds.

import { get } from "../api";
import { ChartGrid, Cursor, smooth, type ChartSpec, type Line } from "../chart";
import { h, notice, replace, show, type Child, type View } from "../dom";
import { plural, visible } from "../format";
import { current, link, setParams } from "../router";
import type { ArmCurves, Comparison } from "../types";
import { headings, smoothing, statusBadge, tableRegion } from "./parts";

const SHOWN_CURVES = 6;

/** The runs that the address names; or those of a study, below its heading. */
export function compareView(root: HTMLElement, study: { runs: string[]; head: Child[] } | null = null): View {
  const grid = new ChartGrid(new Cursor());
  let data: Comparison | null = null;
  let asked: string | null = null;
  replace(root, notice("loading", "Comparing the runs…"));

  const load = async (): Promise<void> => {
    const runs = study?.runs ?? (current().params.get("runs") ?? "").split("|").filter(Boolean);
    const key = runs.join("|");
    if (key === asked) return draw();
    asked = key;
    if (runs.length) return show(root, get<Comparison>("compare", { run: runs }), (answer) => { data = answer; draw(); }, "The runs cannot be compared.");
    replace(root, study?.head ?? [h("h1", {}, "Compare"), notice("empty", "No runs are picked.", h("a", { href: link("runs") }, "Pick runs in the list."), " A study has its own page.")]);
  };

  const draw = (): void => {
    if (!data) return;
    const { params } = current();
    const arms = [...new Set(data.runs.map((r) => r.arm))];
    const curves = Object.keys(data.curves);
    const isAll = params.get("all") === "1";
    const window = Number(params.get("smooth") ?? 1);
    grid.show(curves.slice(0, isAll ? Infinity : SHOWN_CURVES).map((id) => armChart(id, data!.curves[id]!, arms, window)));
    const [one, other] = [data.runs[0], data.runs.find((r) => r.arm !== data!.runs[0]!.arm) ?? data.runs[1]];
    replace(root,
      study?.head ?? h("div", { class: "title-row" }, h("h1", {}, "Compare"), h("p", { class: "muted" }, `${plural(data.runs.length, "run")} in ${plural(arms.length, "arm")}`)),
      h("p", { class: "lead" }, visible(data.verdict) || "No run has an evaluation yet."),
      data.left_out ? notice("empty", `${plural(data.left_out, "more run")} left out.`, "At most 40 runs are compared at once.") : null,
      h("section", {}, h("h2", {}, "Curves"),
        h("div", { class: "toolbar" }, smoothing(window),
          curves.length > SHOWN_CURVES ? h("button", { type: "button", onclick: () => setParams({ all: isAll ? null : 1 }) }, isAll ? "Show fewer curves" : `Show all ${curves.length} curves`) : null,
          h("span", { class: "hint" }, "Thick: mean over seeds with its 95 % interval. Thin: single runs. Vertical lines: intervals over problems.")),
        grid.element),
      h("section", {}, h("h2", {}, "What differs"), differences(data)),
      h("section", {}, h("h2", {}, "Runs"), h("ul", { class: "run-links" }, data.runs.map((r) => h("li", {}, h("a", { href: link("run", r.id) }, r.id), statusBadge(r.status), h("span", { class: "muted" }, `arm ${r.arm}, seed ${r.seed}`)))),
        one && other ? h("a", { class: "button", href: link("run", one.id, "problems", { with: other.id }) }, "The same problem in two runs") : null),
    );
  };

  void load();
  return { update: () => void load(), destroy: () => grid.destroy() };
}

function differences(data: Comparison): HTMLElement {
  if (!data.differences.length) return notice("empty", "The configurations are equal.");
  const text = (value: unknown): string => (value === undefined || value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  return tableRegion("Configuration differences", headings(["key", ...data.runs.map((r) => r.id)], Infinity),
    data.differences.map((d) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, d.key)), data.runs.map((r) => h("td", {}, text(d.values[r.id]))))), "diff");
}

export function armChart(id: string, curve: ArmCurves, arms: string[], window = 1): ChartSpec {
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
  return { id: `curve-${id}`, title: curve.label, unit: curve.unit, bounds: curve.bounds, lines, from: Math.min(...steps), to: Math.max(...steps, 1), help: `${id}: ${curve.sentence}` };
}
