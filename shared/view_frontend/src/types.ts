// The JSON of the server (shared/glasshouse/view/app.py).

import type { Rollout as RolloutFields } from "./rollout";

export type Value = number | null;
export type Bounds = [number, number] | null;
export type Status = "running" | "finished" | "interrupted" | "failed" | "empty";

export interface Estimate {
  value: Value;
  low: Value;
  high: Value;
  null?: Value;
  /** One-sided p of the null. */
  p?: Value;
  ceiling?: Value;
}

export type Point = Estimate & { step: number };

/** What the registry knows about a measure. */
export interface MeasureSpec {
  label: string;
  sentence: string;
  /** The title of its panel; empty if it is not drawn. */
  family: string;
  unit: string;
  bounds: Bounds;
  /** Explains other measures; shown in a table of its own. */
  detail: boolean;
}

export type Measure = MeasureSpec & { points: Point[] };

/** What the list of runs and the page of a run have in common. */
interface RunFacts {
  id: string;
  study: string;
  task: string;
  style: string;
  algorithm: string;
  model: string;
  seed: number;
  status: Status;
  step: number;
  steps: number;
  seconds_left: Value;
}

export interface Overview extends RunFacts {
  updated: string;
  accuracy: Measure | null;
  monitorability: Measure | null;
  damage: string[];
}

export interface RunList {
  runs: Overview[];
  studies: string[];
  roots: string[];
}

export interface Mark {
  step: number;
  kind: string;
  time: string;
  text: string;
}

export interface Run extends RunFacts {
  version: number;
  config_text: string;
  /** Panels in their order. */
  families: string[];
  metrics: { steps: number[]; columns: Record<string, Value[]>; measures: Record<string, MeasureSpec> };
  /** Steps in the log, if the curves of a file hold fewer. */
  logged_steps?: number;
  /** Sampled accuracy, then greedy accuracy. */
  accuracy: Measure[];
  measures: Record<string, Measure>;
  changes: Record<string, Estimate>;
  /** Evaluations before and after training. */
  ends: { problems: Value; rows: { label: string; sentence: string; before: Estimate; after: Estimate }[] };
  marks: Mark[];
  /** Steps whose checkpoints are kept. */
  checkpoints: number[];
  verdict: string;
  versions: Record<string, string>;
  /** Monitors that cannot be applied. */
  notes: string[];
  commands: Record<string, string>;
  damage: { file: string; problem: string; remedy: string }[];
}

type ShownFields =
  | "step" | "split" | "arm" | "group" | "sample" | "key" | "question" | "gold_answer" | "text" | "prompt" | "length" | "reason"
  | "finish_reason" | "reward" | "terms" | "correct" | "model_answer" | "rule" | "behaviour" | "advantage";

/** A rollout; in a list its texts are shortened. */
export interface Rollout extends Pick<RolloutFields, ShownFields> {
  ref: string;
  /** The value of each filter that counts values. */
  label: Record<string, string[]>;
  characters: number;
  answer_start: number;
  verdicts: Record<string, { score: Value; flagged: boolean | null; reason: string }>;
  suspicions: { id: string; label: string; reason: string }[];
}

/** How far the log is indexed. */
export interface Progress {
  indexed_frames: number;
  frames: number;
  damage: string[];
}

export interface RolloutPage extends Progress {
  total: number;
  matching: number;
  rows: Rollout[];
  /** How many of the matching rollouts have each value of each filter. */
  facets: Record<string, Record<string, number>>;
  /** Which rollouts a file holds. */
  note?: string;
}

export interface Problem {
  key: string;
  question: string;
  before: number;
  after: number;
}

export interface ProblemList extends Progress {
  problems: Problem[];
  checkpoints: number[];
}

type CurvePoint = [step: number, value: Value, low: Value, high: Value];

export interface Comparison {
  verdict: string;
  /** Runs beyond the largest number that can be compared. */
  left_out: number;
  runs: { id: string; status: Status; seed: number; arm: string }[];
  differences: { key: string; values: Record<string, unknown> }[];
  curves: Record<string, {
    label: string;
    unit: string;
    bounds: Bounds;
    arms: Record<string, { runs: { run: string; points: CurvePoint[] }[]; band: CurvePoint[] }>;
  }>;
}

export interface StudyResults {
  problem: string;
  runs: string[];
  title: string;
  about: string;
  headline: string;
  arms: string[];
  questions: Record<string, unknown>[];
  curves: { arm: string; measure: string; steps: number[]; mean: Value[]; low: Value[]; high: Value[] }[];
  measures: Record<string, MeasureSpec>;
}

/** The data of a report, inside its file (shared/glasshouse/view/report.py). */
export interface Snapshot {
  suspicions: Record<string, string>;
  runs: Overview[];
  run: Record<string, Run>;
  rollouts: Record<string, { rows: Rollout[]; problems: Problem[]; total: number; damage: string[] }>;
  compare: Comparison | null;
}
