// A report is this page with its data inside: requests are answered from a JSON value in the file.
// It holds a sample of the rollouts, so they are filtered here; a test compares the answers with the
// server's (rollout_query.py).

import type { Rollout, RolloutPage, RolloutRow, SampledRollouts, Snapshot, SuspiciousAnswer } from "./types";

type Params = Record<string, string | number | string[] | null | undefined>;

const BINS = 40;
const PREVIEW = 240;

export function readSnapshot(): Snapshot | null {
  const element = document.getElementById("snapshot");
  return element ? (JSON.parse(element.textContent ?? "null") as Snapshot) : null;
}

export function answerFrom(data: Snapshot, name: string, params: Params): unknown {
  if (name === "info") return { suspicions: data.suspicions };
  if (name === "runs") return { runs: data.runs, studies: [], roots: [] };
  if (name === "compare" && data.compare) return data.compare;
  const id = String(params["run"] ?? "");
  const run = data.run[id];
  const sample = data.rollouts[id];
  if (!run || !sample) throw new Error("This file does not hold that page. Open the run with `glasshouse view`.");
  const byRef = (ref: string): Rollout => {
    const row = sample.rows.find((r) => r.ref === ref);
    if (!row) throw new Error("This file does not hold that rollout. Open the run with `glasshouse view`.");
    return row;
  };
  switch (name) {
    case "run": return run;
    case "rollouts": return listRollouts(sample, params);
    case "rollout": return byRef(String(params["ref"]));
    case "group": {
      const row = byRef(String(params["ref"]));
      return { rows: sample.rows.filter((r) => r.step === row.step && r.split === row.split && r.group === row.group) };
    }
    case "highlights": return { rows: sample.highlights.map((h) => ({ reason: h.reason, rollout: byRef(h.ref) })) };
    case "suspicious": return {
      groups: sample.suspicious.map((g) => ({ ...g, examples: g.examples.map(byRef) })),
      total: sample.checked, indexed_frames: 1, frames: 1,
    } satisfies SuspiciousAnswer;
    case "problems": return { problems: sample.problems, indexed_frames: 1, frames: 1 };
    case "problem": return {
      rows: sample.rows.filter((r) => isHeldOut(r) && r.key === params["key"]).sort((a, b) => a.step - b.step || compareText(a.split, b.split) || a.sample - b.sample),
      checkpoints: run.checkpoints,
    };
    default: throw new Error("A report does not hold this. Open the run with `glasshouse view`.");
  }
}

function isHeldOut(row: Rollout): boolean {
  return /^(validation|monitored)\b/.test(row.split);
}

function compareText(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

// --- rollouts --------------------------------------------------------------------------------

function toRow(r: Rollout): RolloutRow {
  const names = (flagged: boolean): string[] => Object.entries(r.verdicts).filter(([, v]) => v.flagged === flagged).map(([name]) => name);
  return {
    ref: r.ref, step: r.step, group: r.group, sample: r.sample, split: r.split, reward: r.reward, advantage: r.advantage,
    correct: r.correct, rule: r.rule, finish_reason: r.finish_reason, arm: r.arm, length: r.length,
    flagged: names(true), passed: names(false), suspicions: r.suspicions.map((s) => s.id), key: r.key,
    question: r.question.slice(0, PREVIEW), text: r.text.slice(0, PREVIEW), model_answer: r.model_answer, gold_answer: r.gold_answer,
  };
}

/** One page of the matching rollouts, with counts and the histogram of their rewards. */
export function listRollouts(sample: SampledRollouts, params: Params): RolloutPage {
  const text = (name: string): string => (params[name] === null || params[name] === undefined ? "" : String(params[name]));
  const limit = (name: string): number | null => (text(name) === "" ? null : Number(text(name)));
  const [first, last, group, low, high] = ["first", "last", "group", "min_reward", "max_reward"].map(limit);
  const needle = text("text").toLowerCase();
  const flag = text("flagged");
  const others = sample.rows.filter((r) => {
    const row = toRow(r);
    return (["rule", "finish_reason", "arm", "key"] as const).every((name) => !text(name) || row[name] === text(name))
      && (!text("split") || `${row.split}/`.startsWith(`${text("split")}/`))
      && (first == null || r.step >= first) && (last == null || r.step <= last) && (group == null || r.group === group)
      && (!text("correct") || r.correct === (text("correct") === "yes"))
      && (!flag || (flag.startsWith("!") ? row.passed.includes(flag.slice(1)) : row.flagged.includes(flag)))
      && (!text("disagree") || (row.flagged.length > 0 && row.passed.length > 0))
      && (!text("suspicious") || (text("suspicious") === "any" ? row.suspicions.length > 0 : row.suspicions.includes(text("suspicious"))))
      && (!needle || `${r.question}\n${r.text}`.toLowerCase().includes(needle));
  });
  const matching = others.filter((r) => (low == null || (r.reward !== null && r.reward >= low - 1e-6)) && (high == null || (r.reward !== null && r.reward <= high + 1e-6)));
  const sort = text("sort") || "step";
  const column = sort.replace("-", "") as "step" | "reward" | "length";
  const sign = sort.startsWith("-") ? -1 : 1;
  const sorted = [...matching].sort((a, b) => sign * ((a[column] ?? Infinity * sign) - (b[column] ?? Infinity * sign)) || 0);
  const offset = Math.max(0, Number(params["offset"] ?? 0));
  const left = sample.total - sample.rows.length;
  return {
    total: sample.rows.length,
    matching: matching.length,
    rows: sorted.slice(offset, offset + Number(params["limit"] ?? 50)).map(toRow),
    histogram: histogram(others, matching),
    facets: countFacets(matching, sample.monitors),
    monitors: sample.monitors,
    indexed_frames: 1,
    frames: 1,
    damage: sample.damage,
    ...(left > 0 ? { note: `A sample of the run's ${sample.total.toLocaleString("en-US")} rollouts; the others are in its log.` } : {}),
  };
}

function histogram(others: Rollout[], matching: Rollout[]): RolloutPage["histogram"] {
  const known = (rows: Rollout[]): number[] => rows.map((r) => r.reward).filter((v): v is number => v !== null);
  const values = known(others);
  if (!values.length) return { edges: [], all: [], selected: [] };
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const width = (high - low) / BINS;
  const counts = (rewards: number[]): number[] => {
    const bins = new Array<number>(BINS).fill(0);
    for (const reward of rewards) bins[Math.min(BINS - 1, Math.floor((reward - low) / width))]!++;
    return bins;
  };
  return { edges: Array.from({ length: BINS + 1 }, (_, i) => low + i * width), all: counts(values), selected: counts(known(matching)) };
}

function countFacets(rows: Rollout[], monitors: string[]): RolloutPage["facets"] {
  const facets: RolloutPage["facets"] = { split: {}, rule: {}, finish_reason: {}, arm: {}, correct: { yes: 0, no: 0 }, flagged: {}, passed: {}, suspicious: {} };
  const add = (name: string, value: string): void => {
    if (value) facets[name]![value] = (facets[name]![value] ?? 0) + 1;
  };
  monitors.forEach((m) => { facets["flagged"]![m] = 0; facets["passed"]![m] = 0; });
  for (const rollout of rows) {
    const row = toRow(rollout);
    for (const name of ["split", "rule", "finish_reason", "arm"] as const) add(name, row[name]);
    if (row.split.includes("/")) add("split", row.split.split("/")[0]!);
    if (row.correct !== null) add("correct", row.correct ? "yes" : "no");
    row.flagged.forEach((m) => add("flagged", m));
    row.passed.forEach((m) => add("passed", m));
    row.suspicions.forEach((s) => add("suspicious", s));
  }
  return facets;
}
