// What came out of a run: the verdict above, its figures, a problem before and after training, and tables.

import { get, type RunStore } from "../api";
import { ChartGrid, Cursor } from "../chart";
import { copyButton, h, notice, replace, show, type View } from "../dom";
import { number, plural, visible } from "../format";
import { renderPage } from "../markdown";
import { leadPanels, predictionPanels } from "../panels";
import { rolloutCard } from "../rollout_card";
import { link } from "../router";
import type { Estimate, Measure, ProblemList, Rollout, Run } from "../types";
import { firstProblem, listSplits, loadProblem } from "./problems";
import { foldedTable } from "./parts";

export function overviewView(root: HTMLElement, store: RunStore): View {
  const figures = new ChartGrid(new Cursor(), { onpick: (step) => { location.hash = link("run", store.id, "rollouts", { first: step, last: step }); } }, "panels lead-panels");
  const predicted = new ChartGrid(new Cursor(), {}, "panels lead-panels");
  const said = h("div");
  const prediction = h("section", {}, h("h2", {}, "Predicted and measured"), said, predicted.element);
  let shownStep = -1;
  let timer = 0;
  const empty = h("div");
  const notebook = h("section", { class: "page-text" });
  const rollouts = h("div", {}, notice("loading", "Reading the rollouts…"));
  const tables = h("div");
  const problem = h("section", {}, h("h2", {}, "A problem before and after"), rollouts);
  replace(root, h("h2", { class: "offscreen" }, "Overview"), empty, figures.element, prediction, problem, notebook, h("section", {}, h("h2", { class: "offscreen" }, "Tables"), tables));

  const render = (): void => {
    const run = store.run;
    if (!run) return;
    const panels = leadPanels(run);
    figures.show(panels);
    replace(empty, panels.length || run.status === "file" ? null : notice("empty", "No held-out problem was evaluated yet.", "evaluate.problems and evaluate.every set when a run is evaluated."));
    predicted.show(predictionPanels(run));
    prediction.hidden = !run.prediction;
    replace(said, run.prediction ? [h("p", {}, "Predicted: ", h("b", {}, visible(run.prediction.verdict))), h("p", { class: "hint" }, visible(run.prediction.basis))] : null);
    replace(notebook, run.notebook.trim() ? [h("h2", {}, "Notes"), ...renderPage(run.notebook)] : null);
    if (!tables.querySelector("details[open]:not(.opened)")) replace(tables, evaluationTable(run), measureTables(run), sentences("What cannot be said", run.unsaid), facts("How it was measured", run.settings), run.config_text ? trainingBlock(run) : null);
    problem.hidden = run.status === "file" && Object.keys(run.names).length < 2;
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
  return { update: () => undefined, destroy: () => { unsubscribe(); clearTimeout(timer); figures.destroy(); predicted.destroy(); } };
}

/** The same sample of one problem at the first and at the last step. */
async function loadEnds(run: string): Promise<{ rows: Rollout[]; isIndexing: boolean }> {
  const list = await get<ProblemList>("problems", { run });
  const isIndexing = list.indexed_frames < list.frames;
  const problem = firstProblem(list.problems);
  if (!problem) return { rows: [], isIndexing };
  const { rows } = await loadProblem(run, problem.key);
  const same = rows.filter((r) => r.split === listSplits(rows)[0]);
  const series = same.filter((r) => r.sample === same[0]?.sample);
  return { rows: series.length > 1 ? [series[0]!, series.at(-1)!] : series, isIndexing };
}

function highlightCard(run: string, rollout: Rollout): HTMLElement {
  const card = rolloutCard(rollout, run, true);
  const isNamed = !/^\d*$/.test(rollout.checkpoint);
  card.prepend(h("h3", {}, isNamed ? visible(rollout.checkpoint) : rollout.step ? `Step ${rollout.step}` : "Before training"), h("p", { class: "question", dir: "auto" }, visible(rollout.question)));
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

/** The first and the last evaluation of the run itself. */
function evaluationTable(run: Run): HTMLElement | null {
  const measures = Object.values(run.measures).filter((m) => m.change === undefined);
  const steps = measures[0]?.points.map((p) => p.step) ?? [];
  const ends = [...new Set([steps[0], steps.at(-1)])].filter((step) => step !== undefined);
  if (!ends.length) return null;
  return foldedTable(`Evaluations: ${plural(measures.length, "measure")}`, ["measure", ...ends.map((step) => (step ? `step ${step}` : "before training"))],
    measures.map((m) => [[m.unit ? `${m.label}, ${m.unit}` : m.label, m.sentence], ...ends.map((step) => estimateText(m.points.find((p) => p.step === step)))]), false,
    "95 % intervals over problems.");
}

/** A column per checkpoint, the change between the first and the last, and what the last is compared with. */
function measureTables(run: Run): HTMLElement {
  const measured = Object.values(run.measures).filter((m) => m.change !== undefined);
  if (!measured.length) {
    return h("p", { class: "hint" }, ["file", "running"].includes(run.status) ? null : ["Whether the answer depends on the CoT, and what fitted monitors see, is not measured yet: ", h("code", {}, run.commands["monitor"] ?? "")]);
  }
  const steps = [...new Set(measured.flatMap((m) => m.points.map((p) => p.step)))].sort((a, b) => a - b);
  const row = (m: Measure): (string | [string, string])[] => {
    const end = m.points.at(-1);
    return [[m.unit ? `${m.label}, ${m.unit}` : m.label, m.sentence], ...steps.map((step) => estimateText(m.points.find((p) => p.step === step))),
      ...(steps.length > 1 ? [estimateText(m.change ?? undefined, true)] : []),
      end?.null == null ? "" : `${number(end.null, 2)} (p ${number(end.p, 4)})`, end?.ceiling == null ? "" : number(end.ceiling, 2)];
  };
  const columns = ["measure", ...steps.map((step) => visible(run.names[step] || (step === 0 ? (run.status === "file" ? "value" : "base") : `step ${step}`))), ...(steps.length > 1 ? ["change"] : []), "null", "ceiling"];
  const [main, details] = [measured.filter((m) => !m.detail), measured.filter((m) => m.detail)];
  return h("div", {},
    foldedTable(`Monitorability: ${plural(main.length, "measure")}`, columns, main.map(row), run.status === "file", "95 % intervals by cluster bootstrap over problems; a dash means undefined. Null: the same measure of the last checkpoint without the intervention, or with permuted verdicts."),
    details.length ? foldedTable(`${plural(details.length, "more measure")}, which explain those above`, columns, details.map(row)) : null);
}

function sentences(title: string, lines: string[]): HTMLElement | null {
  return lines.length ? h("details", { class: "fold opened", open: true }, h("summary", {}, title), h("ul", {}, lines.map((line) => h("li", {}, visible(line))))) : null;
}

function facts(title: string, values: Record<string, string>): HTMLElement | null {
  const list = Object.entries(values).map(([name, value]) => [h("dt", {}, name), h("dd", {}, visible(value))]).flat();
  return list.length ? h("details", { class: "fold" }, h("summary", {}, title), h("dl", { class: "commands" }, list)) : null;
}

function trainingBlock(run: Run): HTMLElement {
  return h("div", {},
    h("details", { class: "fold" }, h("summary", {}, "How to reproduce it"),
      h("p", {}, "Save the configuration as config.yaml and run it with these versions installed: the results are bitwise identical."),
      h("pre", { class: "config", tabindex: 0 }, "glasshouse train --config config.yaml out=again\nglasshouse monitor again\nglasshouse report again"),
      copyButton("Copy the configuration", () => run.config_text),
      h("pre", { class: "config", tabindex: 0 }, run.config_text)),
    facts("Versions and commands", { ...run.commands, ...run.versions }));
}
