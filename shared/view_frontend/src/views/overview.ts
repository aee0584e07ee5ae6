// What came out of a run: the verdict above, its figures, a problem before and after training, and tables.

import { get, type RunStore } from "../api";
import { Cursor, LineChart } from "../chart";
import { copyButton, h, notice, replace, show, type View } from "../dom";
import { number, plural, visible } from "../format";
import { leadPanels } from "../panels";
import { rolloutCard } from "../rollout_card";
import { link } from "../router";
import type { Estimate, Measure, ProblemList, Rollout, Run } from "../types";
import { firstProblem, listSplits, loadProblem } from "./problems";
import { foldedTable } from "./parts";

export function overviewView(root: HTMLElement, store: RunStore): View {
  const cursor = new Cursor();
  let charts: LineChart[] = [];
  let shownStep = -1;
  let timer = 0;
  const figures = h("div", { class: "panels lead-panels" });
  const rollouts = h("div", {}, notice("loading", "Reading the rollouts…"));
  const tables = h("div");
  replace(root, h("h2", { class: "offscreen" }, "Overview"), figures,
    h("section", {}, h("h2", {}, "A held-out problem before and after"), rollouts), h("section", {}, h("h2", { class: "offscreen" }, "Tables"), tables));

  const render = (): void => {
    const run = store.run;
    if (!run) return;
    charts.forEach((chart) => chart.destroy());
    charts = leadPanels(run).map((spec) => new LineChart(spec, cursor, {
      onpick: (step) => { location.hash = link("run", run.id, "rollouts", { first: step, last: step }); },
    }));
    replace(figures, charts.map((chart) => chart.element),
      charts.length ? null : notice("empty", "No held-out problem was evaluated yet.", "evaluate.problems and evaluate.every set when a run is evaluated."));
    if (!tables.querySelector("details[open]:not(.opened)")) replace(tables, endTable(run), measureTables(run), trainingBlock(run));
    if (shownStep === run.step) return;
    shownStep = run.step;
    showEnds(run.id);
  };
  const showEnds = (run: string): void => {
    clearTimeout(timer);
    void show(rollouts, loadEnds(run), ({ rows, isIndexing }) => {
      replace(rollouts, rows.length
        ? h("div", { class: "highlights" }, rows.map((row) => highlightCard(run, row)))
        : isIndexing ? notice("loading", "Indexing the log…") : notice("empty", "No held-out problem was answered at two steps yet."));
      if (isIndexing) timer = window.setTimeout(() => showEnds(run), 1000);
    }, "The rollouts cannot be read.");
  };

  const unsubscribe = store.subscribe(render);
  render();
  return { update: () => undefined, destroy: () => { unsubscribe(); clearTimeout(timer); charts.forEach((chart) => chart.destroy()); } };
}

/** The same sample of one problem at the first and at the last step. */
async function loadEnds(run: string): Promise<{ rows: Rollout[]; isIndexing: boolean }> {
  const list = await get<ProblemList>("problems", { run });
  const isIndexing = list.indexed_frames < list.frames;
  const problem = firstProblem(list.problems);
  if (!problem) return { rows: [], isIndexing };
  const rows = await loadProblem(run, problem.key);
  const same = rows.filter((r) => r.split === listSplits(rows)[0]);
  const series = same.filter((r) => r.sample === same[0]?.sample);
  return { rows: series.length > 1 ? [series[0]!, series.at(-1)!] : series, isIndexing };
}

function highlightCard(run: string, rollout: Rollout): HTMLElement {
  const card = rolloutCard(rollout, run, true);
  card.prepend(h("h3", {}, rollout.step ? `Step ${rollout.step}` : "Before training"), h("p", { class: "question", dir: "auto" }, visible(rollout.question)));
  card.append(h("p", {}, h("a", { href: link("run", run, "problems", { key: rollout.key }) }, "This problem at every step")));
  return card;
}

/** `0.903 (0.87 to 0.93)` */
function estimateText(estimate: Estimate | undefined, sign = false): string {
  if (!estimate || estimate.value === null) return "–";
  const text = (value: number, digits: number): string => `${sign && value > 0 ? "+" : ""}${number(value, digits)}`;
  const range = estimate.low === null || estimate.high === null ? "" : ` (${text(estimate.low, 2)} to ${text(estimate.high, 2)})`;
  return text(estimate.value, 3) + range;
}

function endTable({ ends }: Run): HTMLElement | null {
  if (!ends.rows.length) return null;
  return foldedTable(`Before and after training (${plural(ends.problems ?? 0, "held-out problem")})`, ["measure", "before", "after"],
    ends.rows.map((r) => [[r.label, r.sentence], estimateText(r.before), estimateText(r.after)]), true,
    "95 % intervals: Wilson's, with the variance between problems where a problem has several samples.");
}

function measureTables(run: Run): HTMLElement {
  const monitored = Object.entries(run.measures).filter(([id, m]) => id.includes(".") && m.points.some((p) => "ceiling" in p));
  if (!monitored.length) {
    return h("div", { class: "notice empty" }, h("strong", {}, "Monitorability is not measured yet."), h("p", {}, "Run ", h("code", {}, run.commands["monitor"] ?? ""), " to measure it."));
  }
  const steps = monitored.flatMap(([, m]) => m.points.map((p) => p.step));
  const ends = [Math.min(...steps), Math.max(...steps)];
  const row = ([id, m]: [string, Measure]): (string | [string, string])[] => {
    const [first, end] = ends.map((step) => m.points.find((p) => p.step === step));
    return [[m.unit ? `${m.label}, ${m.unit}` : m.label, m.sentence], estimateText(first), estimateText(end), estimateText(run.changes[id.slice(id.indexOf(".") + 1)], true),
      end?.null == null ? "" : `${number(end.null, 2)} (p ${number(end.p, 4)})`, end?.ceiling == null ? "" : number(end.ceiling, 2)];
  };
  const columns = ["measure", ...ends.map((step) => (step === 0 ? "base" : `step ${step}`)), "change", "null", "ceiling"];
  const [main, details] = [monitored.filter(([, m]) => !m.detail), monitored.filter(([, m]) => m.detail)];
  return h("div", {},
    foldedTable(`Monitorability: ${plural(main.length, "measure")}`, columns, main.map(row), false, "95 % intervals by cluster bootstrap over problems; a dash means undefined. Null: the same measure of the last checkpoint without the intervention, or with permuted verdicts."),
    details.length ? foldedTable(`${plural(details.length, "more measure")}, which explain those above`, columns, details.map(row)) : null);
}

function trainingBlock(run: Run): HTMLElement {
  const list = (facts: Record<string, string>): HTMLElement => h("dl", { class: "commands" }, Object.entries(facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, visible(value))]).flat());
  return h("div", {},
    h("details", { class: "fold" }, h("summary", {}, "How to reproduce it"),
      h("p", {}, "Save the configuration as config.yaml and run it with these versions installed: the results are bitwise identical."),
      h("pre", { class: "config", tabindex: 0 }, "glasshouse train --config config.yaml out=again\nglasshouse monitor again\nglasshouse report again"),
      list(run.versions),
      copyButton("Copy the configuration", () => run.config_text),
      h("pre", { class: "config", tabindex: 0 }, run.config_text)),
    h("details", { class: "fold" }, h("summary", {}, "Commands"), list(run.commands)));
}
