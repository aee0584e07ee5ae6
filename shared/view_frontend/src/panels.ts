// Which curves a run's page shows: a panel for each family of the registry that has values.

import { smooth, type ChartSpec, type Line, type XY } from "./chart";
import type { Measure, MeasureSpec, Run } from "./types";

const MAX_LINES = 6;
const ACCURACY = "Held-out accuracy";

type Base = Pick<ChartSpec, "from" | "to" | "marks" | "names">;

interface Entry {
  spec: MeasureSpec;
  line: Line;
}

export function runPanels(run: Run, from: number, to: number, window: number): ChartSpec[] {
  return panels(run, [...measureEntries(run), ...metricEntries(run, window)], { from, to, marks: run.marks, names: run.names });
}

/** The figures of the verdict: held-out accuracy, and the first measures of monitorability. */
export function leadPanels(run: Run): ChartSpec[] {
  const points = Object.values(run.measures).flatMap((m) => m.points.map((p) => p.step));
  if (run.status === "file" && new Set(points).size < 2) return []; // a dot is no figure
  const all = panels(run, measureEntries(run), { from: 0, to: Math.max(run.step, 1, ...points), marks: [], names: run.names });
  return all.slice(0, all[0]?.title === ACCURACY ? 3 : 2);
}

/** What was predicted, over what was measured. */
export function predictionPanels(run: Run): ChartSpec[] {
  return Object.entries(run.prediction?.curves ?? {}).map(([name, curve]): ChartSpec => {
    const found = Object.keys(run.measures).filter((id) => id.split(".").at(-1) === name);
    const measure = run.measures[found.find((id) => id === `disclosure_rule.${name}`) ?? found[0] ?? ""];
    const title = name.replace("_", " ");
    return {
      title: title[0]!.toUpperCase() + title.slice(1), unit: "share, 95 % intervals", id: `predicted-${name}`, bounds: [0, 1], from: 0,
      to: Math.max(run.step, run.prediction!.horizon), ...(measure ? { help: measure.sentence } : {}),
      lines: [
        { name: "predicted", color: 1, points: curve.map((p) => [p[0], p[1]]), band: curve.map((p) => [p[0], p[2], p[3]]) },
        ...(measure ? [{ ...measureLine(measure), name: "measured" }] : []),
      ],
    };
  });
}

function panels(run: Run, entries: Entry[], base: Base): ChartSpec[] {
  return run.families.flatMap((title) => {
    const shown = entries.filter((e) => e.spec.family === title && e.line.points.some((p) => p[1] !== null)).slice(0, MAX_LINES);
    return shown.length ? [panel(title, shown, base)] : [];
  });
}

function panel(title: string, entries: Entry[], base: Base): ChartSpec {
  const specs = entries.map((e) => e.spec);
  const areShares = specs.every((s) => s.bounds && s.bounds[0] === 0 && s.bounds[1] === 1);
  const hasIntervals = entries.some((e) => e.line.band?.some((b) => b[1] !== null));
  const unit = specs[0]!.unit || (areShares ? "share" : hasIntervals ? "" : "mean per step");
  return {
    ...base,
    title,
    unit: [unit, hasIntervals ? "95 % intervals" : ""].filter(Boolean).join(", "),
    help: specs.map((s) => `${s.label}: ${s.sentence}`).join("\n"),
    bounds: areShares ? [0, 1] : null,
    lines: entries.map((e, i) => ({ ...e.line, color: i })),
  };
}

function measureEntries(run: Run): Entry[] {
  return Object.values(run.measures).map((spec) => ({ spec, line: measureLine(spec) }));
}

function metricEntries(run: Run, window: number): Entry[] {
  const { steps, columns, measures } = run.metrics;
  return Object.entries(measures).map(([name, spec]) => {
    const raw = (columns[name] ?? []).map((value, i): XY => [steps[i]!, value]);
    const points = window > 1 ? { points: smooth(raw, window), raw } : { points: raw };
    return { spec, line: { name: shortLabel(spec), color: 0, ...points } };
  });
}

function measureLine(measure: Measure): Line {
  return {
    name: shortLabel(measure), color: 0, dots: true,
    points: measure.points.map((p) => [p.step, p.value]),
    band: measure.points.map((p) => [p.step, p.low, p.high]),
  };
}

function shortLabel(spec: MeasureSpec): string {
  return spec.family === ACCURACY ? spec.label.replace("accuracy, ", "") : spec.label;
}
