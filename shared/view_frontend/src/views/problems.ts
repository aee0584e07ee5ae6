// One held-out problem across checkpoints: its chains of thought side by side, differences marked.

import { diffWordsWithSpace } from "diff";
import { get } from "../api";
import { h, notice, replace, select, show } from "../dom";
import { tableButtons } from "../export";
import { number, plural, visible } from "../format";
import { verdictMark } from "../rollout_card";
import { current, setParams } from "../router";
import type { RunStore } from "../run_store";
import type { Problem, Rollout } from "../types";
import type { View } from "../view";

const MAX_DIFF = 20_000;

export function problemsView(root: HTMLElement, store: RunStore): View {
  let problems: Problem[] = [];
  let rows: Rollout[] = [];
  let checkpoints: number[] = [];
  let shownKey: string | null = null;
  let timer = 0;
  const list = h("div", { class: "problem-list" });
  const body = h("div", { class: "problem-body" });
  replace(root, h("div", { class: "problems-layout" }, list, body));
  replace(body, notice("loading", "Reading the held-out problems…"));

  const load = async (): Promise<void> => {
    try {
      const answer = await get<{ problems: Problem[]; indexed_frames: number; frames: number }>("problems", { run: store.id });
      problems = answer.problems;
      drawList();
      if (!problems.length) {
        replace(body, answer.indexed_frames < answer.frames
          ? notice("loading", `Indexing the log: ${answer.indexed_frames} of ${answer.frames} steps…`)
          : notice("empty", "No held-out problem was answered at two steps.", "Evaluations before and after training (evaluate.problems), evaluate.every, or glasshouse monitor give this view something to compare."));
      }
      if (answer.indexed_frames < answer.frames) timer = window.setTimeout(() => void load(), 1000);
      await loadProblem();
    } catch (error) {
      replace(body, notice("error", "The problems cannot be read.", (error as Error).message));
    }
  };

  const chosenKey = (): string => current().params.get("key") ?? problems.find((p) => p.before !== p.after)?.key ?? problems[0]?.key ?? "";

  const loadProblem = async (): Promise<void> => {
    const key = chosenKey();
    if (!key || key === shownKey) return draw();
    shownKey = key;
    const answer = get<{ rows: Rollout[]; checkpoints: number[] }>("problem", { run: store.id, key });
    await show(body, answer, (found) => { ({ rows, checkpoints } = found); draw(); }, "This problem cannot be read.");
  };

  const drawList = (): void => {
    if (list.contains(document.activeElement)) return;
    const wanted = (current().params.get("change") ?? "");
    const key = chosenKey();
    const kept = problems.filter((p) => wanted === "" || (wanted === "better" ? p.after > p.before : wanted === "worse" ? p.after < p.before : p.after === p.before));
    replace(list,
      select("Problems", wanted, [["", `all (${problems.length})`], ["better", "answered better"], ["worse", "answered worse"], ["same", "the same"]], (v) => { setParams({ change: v }); drawList(); }),
      h("ol", { class: "rollout-list", "aria-label": "Held-out problems", tabindex: 0 }, kept.slice(0, 200).map((p) => h("li", {}, h("button", { type: "button", class: `item${p.key === key ? " selected" : ""}`, "aria-current": p.key === key ? "true" : null, onclick: () => setParams({ key: p.key, split: null }, true) },
        h("span", { class: "item-head" }, h("b", {}, `${number(p.before, 2)} → ${number(p.after, 2)}`), h("span", { class: "muted" }, "share correct")),
        h("span", { class: "preview", dir: "auto" }, visible(p.question)))))));
  };

  const draw = (): void => {
    if (!rows.length) return;
    const { params } = current();
    const splits = [...new Set(rows.map((r) => r.split))].sort((a, b) => Number(a.startsWith("monitor")) - Number(b.startsWith("monitor")) || a.localeCompare(b));
    const split = params.get("split") && splits.includes(params.get("split")!) ? params.get("split")! : splits[0]!;
    const samples = [...new Set(rows.filter((r) => r.split === split).map((r) => r.sample))].sort((a, b) => a - b);
    const sample = Number(params.get("sample") ?? samples[0] ?? 0);
    const series = rows.filter((r) => r.split === split && r.sample === sample).sort((a, b) => a.step - b.step);
    const steps = series.map((r) => r.step);
    const chosen = params.get("steps")?.split(",").map(Number).filter((s) => steps.includes(s)) ?? defaultSteps(steps, checkpoints);
    const columns = series.filter((r) => chosen.includes(r.step));
    replace(body,
      h("h2", { dir: "auto" }, visible(rows[0]!.question)),
      h("p", { class: "muted" }, "gold ", h("b", {}, visible(rows[0]!.gold_answer) || "–"), ` · ${plural(rows.length, "rollout")} of this problem`),
      h("div", { class: "toolbar" },
        select("Rollouts", split, splits.map((s): [string, string] => [s, s]), (v) => setParams({ split: v, steps: null })),
        samples.length > 1 ? select("Sample", String(sample), samples.map((n): [string, string] => [String(n), String(n)]), (v) => setParams({ sample: v })) : null,
        h("fieldset", { class: "steps" }, h("legend", {}, "Steps"), steps.map((step, i) => {
          const box = h("input", { type: "checkbox", checked: chosen.includes(step), onchange: () => {
            const next = steps.filter((s) => (s === step ? box.checked : chosen.includes(s)));
            setParams({ steps: next.join(",") });
          } });
          return h("label", { class: "field check" }, box, h("span", {}, nameStep(step, i, steps)));
        }))),
      h("p", { class: "hint" }, h("ins", {}, "Added"), " and ", h("del", {}, "removed"), " text is relative to the column on the left."),
      h("div", { class: "group", tabindex: 0, role: "region", "aria-label": "Rollouts by step" }, columns.map((row, i) => h("article", { class: "rollout" },
        h("header", { class: "rollout-head" }, h("h3", {}, nameStep(row.step, steps.indexOf(row.step), steps)), h("div", { class: "facts" }, verdictMark(row.correct), h("span", { class: "fact" }, h("span", {}, "answer"), " ", h("b", {}, visible(row.model_answer ?? "none"))), row.reward === null ? null : h("span", { class: "fact" }, h("span", {}, "reward"), " ", h("b", {}, number(row.reward, 2))))),
        diffText(columns[i - 1]?.text ?? null, row.text)))),
      h("div", { class: "toolbar slim" }, tableButtons("problem", () => ({
        columns: ["step", "split", "sample", "correct", "model_answer", "gold_answer", "reward", "text"],
        rows: columns.map((r) => [r.step, r.split, r.sample, r.correct, r.model_answer, r.gold_answer, r.reward, r.text]),
      }))));
  };

  void load();
  return { update: () => { drawList(); void loadProblem(); }, destroy: () => window.clearTimeout(timer) };
}

/** Base, first, chosen (the newest checkpoint before the last) and last. */
function defaultSteps(steps: number[], checkpoints: number[]): number[] {
  const middle = steps.filter((s) => checkpoints.includes(s) && s !== steps.at(-1) && s !== steps[0]).at(-1);
  return [...new Set([steps[0], steps[1], middle, steps.at(-1)].filter((s): s is number => s !== undefined))];
}

function nameStep(step: number, index: number, steps: number[]): string {
  if (step === 0) return "base (step 0)";
  if (index === steps.length - 1) return `last (step ${step})`;
  return index === 1 && steps[0] === 0 ? `first (step ${step})` : `step ${step}`;
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
