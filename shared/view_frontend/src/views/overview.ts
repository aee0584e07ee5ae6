// What came out of a run: the verdict above, its figures, three rollouts worth reading, and tables.

import { get } from "../api";
import { Cursor, LineChart } from "../chart";
import { h, notice, replace, show, tableRegion, type Child } from "../dom";
import { copyButton, tableButtons, type Table } from "../export";
import { number, plural, visible } from "../format";
import { leadPanels } from "../panels";
import { rolloutCard } from "../rollout_card";
import { link } from "../router";
import type { RunStore } from "../run_store";
import type { EndRow, Highlight, Measure, Point, Run } from "../types";
import type { View } from "../view";

type Estimate = Omit<Point, "step">;

export function overviewView(root: HTMLElement, store: RunStore): View {
  const cursor = new Cursor();
  let charts: LineChart[] = [];
  let shownStep = -1;
  const figures = h("div", { class: "panels lead-panels" });
  const rollouts = h("div", {}, notice("loading", "Reading the rollouts…"));
  const tables = h("div");
  replace(root, h("h2", { class: "offscreen" }, "Overview"), figures,
    h("section", {}, h("h2", {}, "Three rollouts worth reading"), rollouts), h("section", {}, h("h2", { class: "offscreen" }, "Tables"), tables));

  const render = (): void => {
    const run = store.run;
    if (!run) return;
    charts.forEach((chart) => chart.destroy());
    charts = leadPanels(run).map((spec) => new LineChart(spec, cursor, {
      onpick: (step) => { location.hash = link("run", run.id, "rollouts", { first: step, last: step }); },
    }));
    replace(figures, charts.map((chart) => chart.element),
      charts.length ? null : notice("empty", "No held-out problem was evaluated yet.", "evaluate.problems and evaluate.every set when a run is evaluated."));
    if (!tables.querySelector("details[open]:not(.opened)")) replace(tables, endTables(run), measureTables(run), sessionBlock(run));
    if (shownStep !== run.step) {
      shownStep = run.step;
      void loadRollouts(run);
    }
  };

  const loadRollouts = (run: Run): Promise<void> => show(rollouts, get<{ rows: Highlight[] }>("highlights", { run: run.id }), ({ rows }) => {
    replace(rollouts, rows.length
      ? h("div", { class: "highlights" }, rows.map((item) => highlightCard(run.id, item)))
      : notice("empty", "This run has no rollouts.", "Its log was deleted, or no step is done yet."));
  }, "The rollouts cannot be read.");

  const unsubscribe = store.subscribe(render);
  render();
  return { update: () => undefined, destroy: () => { unsubscribe(); charts.forEach((chart) => chart.destroy()); } };
}

function highlightCard(run: string, { reason, rollout }: Highlight): HTMLElement {
  const card = rolloutCard(rollout, { run, part: "both", tint: "none", compact: true });
  card.prepend(h("h3", { dir: "auto" }, visible(reason)), h("p", { class: "question", dir: "auto" }, visible(rollout.question)));
  card.append(h("p", {}, h("a", { href: link("run", run, "rollouts", { ref: rollout.ref, first: rollout.step, last: rollout.step, split: rollout.split }) }, `step ${rollout.step}, ${rollout.split}`)));
  return card;
}

/** `0.903 (0.87 to 0.93)` */
function estimateText(estimate: Estimate | undefined, sign = false): string {
  if (!estimate || estimate.value === null) return "–";
  const text = (value: number, digits: number): string => `${sign && value > 0 ? "+" : ""}${number(value, digits)}`;
  const range = estimate.low === null || estimate.high === null ? "" : ` (${text(estimate.low, 2)} to ${text(estimate.high, 2)})`;
  return text(estimate.value, 3) + range;
}

function endTables(run: Run): HTMLElement | null {
  const { ends } = run;
  if (!ends.rows.length) return null;
  const rows = (list: EndRow[]): string[][] => list.map((r) => [r.label, estimateText(r.before), estimateText(r.after), r.sentence]);
  return h("div", {},
    foldedTable(`Before and after training (${plural(ends.problems ?? 0, "held-out problem")})`, { columns: ["measure", "before", "after", "definition"], rows: rows(ends.rows) }, true,
      "95 % intervals: Wilson's, with the variance between problems where a problem has several samples."),
    ends.levels.length ? foldedTable(`By difficulty level: ${ends.level_label}`, { columns: ["level", "before", "after", "problems"], rows: rows(ends.levels) }) : null);
}

function measureTables(run: Run): HTMLElement {
  const monitored = Object.entries(run.measures).filter(([id, m]) => id.includes(".") && m.points.some((p) => "ceiling" in p));
  if (!monitored.length) {
    return h("div", { class: "notice empty" }, h("strong", {}, "Monitorability is not measured yet."), h("p", {}, "Run ", h("code", {}, run.commands["monitor"] ?? ""), " to measure it."));
  }
  const steps = monitored.flatMap(([, m]) => m.points.map((p) => p.step));
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const name = (step: number): string => (step === 0 ? "base" : `step ${step}`);
  const row = ([id, m]: [string, Measure]): string[] => {
    const at = (step: number): Point | undefined => m.points.find((p) => p.step === step);
    const end = at(last);
    return [m.unit ? `${m.label}, ${m.unit}` : m.label, estimateText(at(first)), estimateText(end), estimateText(run.changes[id.slice(id.indexOf(".") + 1)], true),
      end?.null === null || end?.null === undefined ? "" : `${number(end.null, 2)} (p ${number(end.p, 4)})`, end?.ceiling === null || end?.ceiling === undefined ? "" : number(end.ceiling, 2), m.sentence];
  };
  const columns = ["measure", name(first), name(last), "change", "null", "ceiling", "definition"];
  const [main, details] = [monitored.filter(([, m]) => !m.detail), monitored.filter(([, m]) => m.detail)];
  return h("div", {},
    foldedTable(`Monitorability: ${plural(main.length, "measure")}`, { columns, rows: main.map(row) }, false, "95 % intervals by cluster bootstrap over problems; a dash means undefined. Null: the same measure of the last checkpoint without the intervention, or with permuted verdicts."),
    details.length ? foldedTable(`${plural(details.length, "more measure")}, which explain those above`, { columns, rows: details.map(row) }) : null);
}

/** A table that is folded unless `open`; its last column is the small print of the first. */
function foldedTable(title: string, table: Table, open = false, note = ""): HTMLElement {
  const [first, ...others] = table.columns.slice(0, -1);
  return h("details", { class: `fold${open ? " opened" : ""}`, open },
    h("summary", {}, title),
    tableRegion(title, [h("th", { scope: "col" }, first), ...others.map((c) => h("th", { scope: "col", class: "numeric" }, c))],
      table.rows.map((cells) => h("tr", {}, h("th", { scope: "row" }, cells[0] as Child, h("small", { class: "block" }, cells.at(-1) as Child)), cells.slice(1, -1).map((cell) => h("td", { class: "numeric" }, cell as Child))))),
    note ? h("p", { class: "muted" }, note) : null,
    h("div", { class: "toolbar slim" }, tableButtons(title, () => table)));
}

function sessionBlock(run: Run): HTMLElement {
  const list = (facts: Record<string, string>): HTMLElement => h("dl", { class: "commands" }, Object.entries(facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, visible(value))]).flat());
  return h("div", {},
    h("details", { class: "fold" }, h("summary", {}, "When and how it was trained"), list(run.sessions)),
    h("details", { class: "fold" }, h("summary", {}, "How to reproduce it"),
      h("p", {}, "Save the configuration as config.yaml and run it with these versions installed: the results are bitwise identical."),
      h("pre", { class: "config", tabindex: 0 }, "glasshouse train --config config.yaml out=again\nglasshouse monitor again\nglasshouse report again"),
      list(run.versions),
      h("p", {}, copyButton("Copy the configuration as YAML", () => run.config_text), " ", copyButton("as JSON", () => JSON.stringify(run.config, null, 2))),
      h("pre", { class: "config", tabindex: 0 }, run.config_text)),
    h("details", { class: "fold" }, h("summary", {}, "Commands"), list(run.commands)));
}
