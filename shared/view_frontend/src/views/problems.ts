// One held-out problem across checkpoints, of one run or two: its chains of thought side by side, differences marked.

import { diffWordsWithSpace } from "diff";
import { get, type RunStore } from "../api";
import { h, notice, replace, select, show, type Child, type View } from "../dom";
import { number, plural, visible } from "../format";
import { fact, verdictMark } from "../rollout_card";
import { current, setParams } from "../router";
import type { Problem, ProblemList, Rollout, RolloutPage, RunList } from "../types";

const MAX_DIFF = 20_000;
const SHOWN_PROBLEMS = 200;

/** Every held-out rollout of a problem, as far as they are indexed. */
export async function loadProblem(run: string, key: string): Promise<RolloutPage> {
  return get<RolloutPage>("rollouts", { run, key, held_out: 1, full: 1, limit: 400, sort: "step" });
}

/** The problem to show first: one whose answers changed. */
export function firstProblem(problems: Problem[]): Problem | undefined {
  return problems.find((p) => p.before !== p.after) ?? problems[0];
}

/** The splits of a problem's rollouts: prompts with a planted behaviour first, monitored ones last. */
export function listSplits(rows: Rollout[]): string[] {
  const rank = (split: string): number => (split.startsWith("monitored") ? 2 : split.endsWith("/planted") ? 0 : 1);
  return [...new Set(rows.map((r) => r.split))].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

export function problemsView(root: HTMLElement, store: RunStore): View {
  let problems: Problem[] = [];
  let checkpoints: number[] = [];
  let rows: Rollout[] = [];
  /** Of the same problem in the other run. */
  let others: Rollout[] = [];
  let runs: string[] = [];
  let shownKey: string | null = null;
  let timer = 0;
  const list = h("div", { class: "problem-list" });
  const body = h("div", { class: "problem-body" });
  replace(root, h("div", { class: "problems-layout" }, list, body));
  replace(body, notice("loading", "Reading the held-out problems…"));

  const load = (): Promise<void> => show(body, get<ProblemList>("problems", { run: store.id }), (answer) => {
    ({ problems, checkpoints } = answer);
    const isIndexing = answer.indexed_frames < answer.frames;
    if (isIndexing) timer = window.setTimeout(() => void load(), 1000);
    drawList();
    if (problems.length) return void loadShown();
    replace(body, isIndexing
      ? notice("loading", `Indexing the log: ${answer.indexed_frames} of ${answer.frames} steps…`)
      : notice("empty", "No held-out problem was answered at two steps.", "Evaluations before and after training (evaluate.problems), evaluate.every, or glasshouse monitor give this view something to compare."));
  }, "The problems cannot be read.");

  const chosenKey = (): string => current().params.get("key") ?? firstProblem(problems)?.key ?? "";

  const loadShown = async (): Promise<void> => {
    const [key, other] = [chosenKey(), current().params.get("with")];
    if (!key || `${key} ${other}` === shownKey) return draw();
    shownKey = `${key} ${other}`;
    const pages = Promise.all([store.id, ...(other ? [other] : [])].map((id) => loadProblem(id, key)));
    await show(body, pages, (found) => {
      [rows, others] = [found[0]!.rows, found[1]?.rows ?? []];
      if (found.some((page) => page.indexed_frames < page.frames)) {
        shownKey = null; // there may be more later
        clearTimeout(timer);
        timer = window.setTimeout(() => void load(), 1000);
      }
      draw();
    }, "This problem cannot be read.");
  };
  void get<RunList>("runs").then((list) => {
    runs = list.runs.filter((r) => r.id !== store.id).map((r) => r.id);
    draw();
  });

  const drawList = (): void => {
    if (list.contains(document.activeElement)) return;
    const wanted = current().params.get("change") ?? "";
    const key = chosenKey();
    const kept = problems.filter((p) => !wanted || wanted === (p.after > p.before ? "better" : p.after < p.before ? "worse" : "same"));
    const item = (p: Problem): HTMLElement => h("button", { type: "button", class: `item${p.key === key ? " selected" : ""}`, "aria-current": p.key === key ? "true" : null, onclick: () => setParams({ key: p.key, split: null }, true) },
      h("span", { class: "item-head" }, h("b", {}, `${number(p.before, 2)} → ${number(p.after, 2)}`), h("span", { class: "muted" }, "share correct")),
      h("span", { class: "preview", dir: "auto" }, visible(p.question)));
    replace(list,
      select("Problems", wanted, [["", `all (${problems.length})`], ["better", "answered better"], ["worse", "answered worse"], ["same", "the same"]], (v) => { setParams({ change: v }); drawList(); }),
      h("ol", { class: "rollout-list", "aria-label": "Held-out problems", tabindex: 0 }, kept.slice(0, SHOWN_PROBLEMS).map((p) => h("li", {}, item(p)))));
  };

  const draw = (): void => {
    if (!rows.length) return;
    const { params } = current();
    const splits = listSplits(rows);
    const split = splits.find((s) => s === params.get("split")) ?? splits[0]!;
    const samples = [...new Set(rows.filter((r) => r.split === split).map((r) => r.sample))].sort((a, b) => a - b);
    const sample = Number(params.get("sample") ?? samples[0] ?? 0);
    const series = rows.filter((r) => r.split === split && r.sample === sample);
    const steps = series.map((r) => r.step);
    const chosen = params.get("steps")?.split(",").map(Number) ?? defaultSteps(steps, checkpoints);
    const other = params.get("with") ?? "";
    const group = (title: string, columns: Rollout[]): Child[] => [other ? h("h2", { class: "run-title" }, title) : null,
      columns.length ? h("div", { class: "group", tabindex: 0, role: "region", "aria-label": `Rollouts of ${title} by step` }, columns.map((row, i) => stepCard(row, columns[i - 1] ?? null, nameStep(row.step, steps))))
        : notice("empty", "This run has no such rollout of this problem.")];
    const stepBox = (step: number): HTMLElement => {
      const box = h("input", { type: "checkbox", checked: chosen.includes(step), onchange: () => setParams({ steps: steps.filter((s) => (s === step ? box.checked : chosen.includes(s))).join(",") }) });
      return h("label", { class: "field check" }, box, h("span", {}, nameStep(step, steps)));
    };
    replace(body,
      h("h2", { dir: "auto" }, visible((series[0] ?? rows[0]!).question)),
      h("p", { class: "muted" }, "gold ", h("b", {}, visible(rows[0]!.gold_answer) || "–"), ` · ${plural(rows.length, "rollout")} of this problem`),
      h("div", { class: "toolbar" },
        select("Rollouts", split, splits.map((s): [string, string] => [s, s]), (v) => setParams({ split: v, steps: null })),
        samples.length > 1 ? select("Sample", String(sample), samples.map((n): [string, string] => [String(n), String(n)]), (v) => setParams({ sample: v })) : null,
        h("fieldset", { class: "steps" }, h("legend", {}, "Steps"), steps.map(stepBox)),
        runs.length ? select("Beside", other, [["", "no other run"], ...runs.map((id): [string, string] => [id, id])], (v) => setParams({ with: v }, true)) : null),
      h("p", { class: "hint" }, h("ins", {}, "Added"), " and ", h("del", {}, "removed"), " text is relative to the column on the left."),
      group(store.id, series.filter((r) => chosen.includes(r.step))),
      other ? group(other, others.filter((r) => r.split === split && r.sample === sample && chosen.includes(r.step))) : null);
  };

  void load();
  return { update: () => { drawList(); void loadShown(); }, destroy: () => window.clearTimeout(timer) };
}

function stepCard(row: Rollout, before: Rollout | null, title: string): HTMLElement {
  return h("article", { class: "rollout" }, h("h3", {}, title),
    h("div", { class: "facts" }, verdictMark(row.correct), fact("answer", visible(row.model_answer ?? "none")), fact("reward", row.reward === null ? "" : number(row.reward, 2)),
      row.behaviour === null ? null : fact("planted behaviour", row.behaviour ? "yes" : "no")),
    diffText(before?.text ?? null, row.text));
}

/** Base, first, the newest checkpoint before the last, and last. */
function defaultSteps(steps: number[], checkpoints: number[]): number[] {
  const middle = steps.slice(1, -1).findLast((s) => checkpoints.includes(s));
  return [steps[0], steps[1], middle, steps.at(-1)].filter((s): s is number => s !== undefined);
}

function nameStep(step: number, steps: number[]): string {
  if (step === 0) return "base (step 0)";
  if (step === steps.at(-1)) return `last (step ${step})`;
  return step === steps[1] && steps[0] === 0 ? `first (step ${step})` : `step ${step}`;
}

function diffText(before: string | null, after: string): HTMLElement {
  const pre = h("pre", { class: "model-text cot", dir: "auto" });
  if (before === null || before.length + after.length > MAX_DIFF) {
    pre.textContent = visible(after);
    return pre;
  }
  for (const part of diffWordsWithSpace(before, after)) {
    const text = visible(part.value);
    pre.append(part.added ? h("ins", {}, text) : part.removed ? h("del", {}, text) : text);
  }
  return pre;
}
