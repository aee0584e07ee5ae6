// A study: its questions with effect, interval, null and verdict, linked to the curves behind them.

import { get } from "../api";
import { Cursor, LineChart, type Line } from "../chart";
import { h, notice, replace, show, type View } from "../dom";
import { number } from "../format";
import { renderText } from "../markdown";
import { current, link, setParams } from "../router";
import type { StudyResults } from "../types";
import { headings, tableRegion } from "./parts";

type Item = Record<string, unknown>;
const asItem = (value: unknown): Item => (value && typeof value === "object" ? (value as Item) : {});
const asNumber = (value: unknown): number | null => (typeof value === "number" ? value : null);

function effectText(value: unknown): string {
  const [effect, low, high] = ["effect", "low", "high"].map((name) => asNumber(asItem(value)[name]));
  if (effect == null) return "–";
  const sign = (v: number): string => `${v >= 0 ? "+" : "−"}${number(Math.abs(v), 2)}`;
  return low == null || high == null ? sign(effect) : `${sign(effect)} (${sign(low)} to ${sign(high)})`;
}

export function studyView(root: HTMLElement, id: string): View {
  const cursor = new Cursor();
  let charts: LineChart[] = [];
  let study: StudyResults | null = null;
  replace(root, notice("loading", "Reading the study…"));

  const draw = (): void => {
    if (!study) return;
    charts.forEach((chart) => chart.destroy());
    const compare = study.runs.length > 1 ? h("a", { class: "button primary", href: link("compare", "", "", { runs: study.runs.slice(0, 40).join("|") }) }, "Compare its runs") : null;
    if (study.problem) return replace(root, h("h1", {}, id), notice("empty", "No results to show.", study.problem), compare);
    const chosen = current().params.get("measure");
    const measures = [...new Set(study.curves.map((c) => c.measure))];
    charts = measures.map((measure) => chartOf(study!, measure, cursor));
    charts.forEach((chart, i) => {
      chart.element.id = `curve-${measures[i]}`;
      chart.element.classList.toggle("selected", measures[i] === chosen);
    });
    replace(root,
      h("div", { class: "title-row" }, h("h1", {}, study.title), id === study.title ? null : h("p", { class: "muted" }, id)),
      h("p", { class: "lead" }, study.headline), h("p", { class: "muted" }, study.about),
      h("section", {}, h("h2", {}, "Questions"),
        tableRegion("Questions", headings(["question", "effect (95 % interval)", "Holm p", "null arm", "verdict"]), study.questions.map((q) => questionRow(q, chosen))),
        compare),
      h("section", {}, h("h2", {}, "Curves by arm"), h("p", { class: "hint" }, "Mean over seeds with Student's 95 % interval."),
        h("div", { class: "panels" }, charts.map((chart) => chart.element))),
      study.text ? h("section", { class: "page-text" }, renderText(study.text, [], false, Infinity)) : null);
  };

  void show(root, get<StudyResults>("study", { study: id }), (answer) => { study = answer; draw(); }, "The study cannot be read.");
  return { update: draw, destroy: () => charts.forEach((chart) => chart.destroy()) };
}

function questionRow(question: Item, chosen: string | null): HTMLElement {
  const [ask, measure, verdict, text] = ["ask", "measure", "verdict", "explanation"].map((name) => String(question[name] ?? ""));
  const open = (): void => {
    setParams({ measure: measure! });
    document.getElementById(`curve-${measure}`)?.scrollIntoView({ block: "center" });
  };
  const cells = [effectText(question["effect"]), number(asNumber(asItem(question["effect"])["p_holm"])), effectText(question["null"])];
  return h("tr", { class: measure === chosen ? "selected" : "" },
    h("td", {}, h("button", { type: "button", class: "link", onclick: open }, ask), text ? h("details", { class: "explain" }, h("summary", {}, "Explanation"), h("p", {}, text)) : null),
    cells.map((cell) => h("td", { class: "numeric" }, cell)),
    h("td", { class: "numeric" }, h("span", { class: `chip ${/^shown/i.test(verdict!) ? "good" : /not as/i.test(verdict!) ? "warn" : ""}` }, verdict)));
}

function chartOf(study: StudyResults, measure: string, cursor: Cursor): LineChart {
  const curves = study.curves.filter((c) => c.measure === measure);
  const spec = study.measures[measure];
  const lines = curves.map((c): Line => ({
    name: c.arm, color: Math.max(0, study.arms.indexOf(c.arm)),
    points: c.steps.map((step, i) => [step, c.mean[i] ?? null]),
    band: c.steps.map((step, i) => [step, c.low[i] ?? null, c.high[i] ?? null]),
  }));
  const steps = curves.flatMap((c) => c.steps);
  return new LineChart({ title: spec?.label ?? measure, unit: spec?.unit ?? "", help: spec?.sentence ?? "", bounds: spec?.bounds ?? null, lines, from: Math.min(...steps, 0), to: Math.max(...steps, 1) }, cursor);
}
