// A report is this page with its data inside: requests are answered from a JSON value in the file.
// It holds a sample of the rollouts, so they are filtered here; a test compares the answers with the
// server's (rollout_index.py).

import { count } from "./format";
import type { ProblemList, Rollout, RolloutPage, Snapshot } from "./types";

export type Params = Record<string, string | number | string[] | null | undefined>;

const ALL = { indexed_frames: 1, frames: 1 };

export function readSnapshot(): Snapshot | null {
  const element = document.getElementById("snapshot");
  return element ? (JSON.parse(element.textContent ?? "null") as Snapshot) : null;
}

export function answerFrom(data: Snapshot, name: string, params: Params): unknown {
  if (name === "runs") return { runs: data.runs, studies: [], roots: [] };
  if (name === "compare" && data.compare) return data.compare;
  if (name === "study" && data.study) return data.study;
  const id = String(params["run"] ?? "");
  const [run, sample] = [data.run[id], data.rollouts[id]];
  if (!run || !sample) throw new Error("This file does not hold that page. Open the run with `glasshouse view`.");
  if (name === "run") return run;
  if (name === "problems") return { problems: sample.problems, checkpoints: run.checkpoints, damage: [], ...ALL } satisfies ProblemList;
  return listRollouts(sample, params, run.status === "file" ? "step" : "-step");
}

function listRollouts(sample: Snapshot["rollouts"][string], params: Params, order: string): RolloutPage {
  const text = (name: string): string => String(params[name] ?? "");
  const within = (value: number | null, low: string, high: string): boolean =>
    (!text(low) || (value !== null && value >= Number(text(low)) - 1e-6)) && (!text(high) || (value !== null && value <= Number(text(high)) + 1e-6));
  const matches = (row: Rollout): boolean =>
    Object.entries(row.facets).every(([name, values]) => !text(name) || values.includes(text(name)))
    && (["ref", "group", "key"] as const).every((name) => !text(name) || String(row[name]) === text(name))
    && (!text("held_out") || /^(validation|monitored|$)/.test(row.split))
    && within(row.step, "first", "last") && within(row.reward, "min_reward", "max_reward")
    && `${row.question}\n${row.text}`.toLowerCase().includes(text("text").toLowerCase());
  const matching = sample.rows.filter(matches);
  const sort = text("sort") || order;
  const column = sort.replace("-", "") as "step" | "reward" | "length";
  const sign = sort.startsWith("-") ? -1 : 1;
  matching.sort((a, b) => sign * ((a[column] ?? Infinity * sign) - (b[column] ?? Infinity * sign)) || 0);
  const facets: RolloutPage["facets"] = {};
  for (const row of matching) {
    for (const [name, values] of Object.entries(row.facets)) {
      const counts = (facets[name] ??= {});
      for (const value of values) counts[value] = (counts[value] ?? 0) + 1;
    }
  }
  const offset = Number(params["offset"] ?? 0);
  return {
    total: sample.rows.length, matching: matching.length, facets, damage: sample.damage, ...ALL,
    rows: matching.slice(offset, offset + Number(params["limit"] ?? 50)),
    ...(sample.total > sample.rows.length ? { note: `A sample of ${count(sample.total)} rollouts.` } : {}),
  };
}
