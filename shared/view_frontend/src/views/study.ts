// A study: its questions with effect, interval, null and verdict, linked to the curves behind them.

import { get } from "../api";
import { ChartGrid, Cursor } from "../chart";
import { h, notice, replace, show, type Child, type View } from "../dom";
import { number } from "../format";
import { renderPage } from "../markdown";
import { current, link, setParams } from "../router";
import type { StudyResults } from "../types";
import { armChart, compareView } from "./compare";
import { headings, tableRegion } from "./parts";

const MAX_RUNS = 40;
const COLUMNS = ["question", "effect (95 % interval)", "Holm p", "null arm", "verdict"];
type Item = Record<string, unknown>;
const asItem = (value: unknown): Item => (value && typeof value === "object" ? (value as Item) : {});
const asNumber = (value: unknown): number | null => (typeof value === "number" ? value : null);

function effectText(value: unknown): string {
  const [effect, low, high] = ["effect", "low", "high"].map((name) => asNumber(asItem(value)[name]));
  if (effect == null) return "–";
  const largest = Math.max(...[effect, low, high].map((v) => Math.abs(v ?? 0)));
  const size = (v: number): number => (largest >= 0.005 && Math.abs(v) < 0.001 ? 0 : Math.abs(v)); // no power of ten beside 0.01
  const sign = (v: number): string => `${v >= 0 ? "+" : "−"}${number(size(v), 2)}`;
  return low == null || high == null ? sign(effect) : `${sign(effect)} (${sign(low)} to ${sign(high)})`;
}

export function studyView(root: HTMLElement, id: string): View {
  const grid = new ChartGrid(new Cursor());
  let study: StudyResults | null = null;
  /** Of a study without verdicts: its runs compared. */
  let runs: View | null = null;
  replace(root, notice("loading", "Reading the study…"));

  const draw = (): void => {
    if (!study) return;
    const head: Child[] = [h("div", { class: "title-row" }, h("h1", {}, study.title || id), id === study.title ? null : h("p", { class: "muted" }, id)), h("p", { class: "muted about" }, study.about)];
    if (study.problem) {
      runs ??= compareView(root, { runs: study.runs.slice(0, MAX_RUNS), head: [...head, h("p", { class: "hint" }, study.problem)] });
      return runs.update();
    }
    const chosen = current().params.get("measure"), selected = curvesOf(Object.keys(study.curves), chosen);
    grid.show(Object.entries(study.curves).map(([id, curve]) => ({ ...armChart(id, curve, study!.arms), isSelected: selected.includes(id) })));
    replace(root, head, h("p", { class: "lead" }, study.headline),
      study.questions.length === 0 ? null : h("section", {}, h("h2", {}, "Questions"),
        tableRegion("Questions", headings(COLUMNS), study.questions.map((q) => questionRow(q, chosen)), "stacked")),
      h("section", {}, h("h2", {}, "Curves by arm"),
        h("div", { class: "toolbar" }, study.runs.length > 1 ? h("a", { class: "button primary", href: link("compare", "", "", { runs: study.runs.slice(0, MAX_RUNS).join("|") }) }, "Compare its runs") : null,
          h("span", { class: "hint" }, "Mean over seeds with Student's 95 % interval.")),
        grid.element),
      study.text ? h("details", { class: "fold page-text", open: study.questions.length === 0 }, h("summary", {}, "The whole report: each question or run, arms, seeds, how to reproduce it"), renderPage(study.text)) : null);
  };

  void show(root, get<StudyResults>("study", { study: id }), (answer) => { study = answer; draw(); }, "The study cannot be read.");
  return { update: draw, destroy: () => { grid.destroy(); runs?.destroy(); } };
}

/** The curve of a question's measure; those of every monitor, if it asks about all of them. */
function curvesOf(ids: string[], measure: string | null): string[] {
  return measure && !ids.includes(measure) ? ids.filter((id) => id.endsWith(`.${measure}`)) : ids.filter((id) => id === measure);
}

function questionRow(question: Item, chosen: string | null): HTMLElement {
  const [ask, measure, verdict, text] = ["ask", "measure", "verdict", "explanation"].map((name) => String(question[name] ?? ""));
  const open = (): void => {
    setParams({ measure: measure! });
    document.querySelector("figure.selected")?.scrollIntoView({ block: "center" });
  };
  const cells = [effectText(question["effect"]), number(asNumber(asItem(question["effect"])["p_holm"])), effectText(question["null"])];
  return h("tr", { class: measure === chosen ? "selected" : "" },
    h("td", {}, h("button", { type: "button", class: "link", onclick: open }, ask), text ? h("details", { class: "explain" }, h("summary", {}, "Explanation"), h("p", {}, text)) : null),
    cells.map((cell, i) => h("td", { class: "numeric", "data-label": COLUMNS[i + 1] }, cell)),
    h("td", { class: "numeric" }, h("span", { class: `chip ${/^shown/i.test(verdict!) ? "good" : /not as/i.test(verdict!) ? "warn" : ""}` }, verdict)));
}
