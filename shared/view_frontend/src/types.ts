// The JSON of the server (shared/glasshouse/view/app.py).

import type { TextMark } from "./markdown";

export type Value = number | null;
export type Bounds = [number, number] | null;
export type Status = "running" | "finished" | "interrupted" | "failed" | "empty" | "file";

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

/** One of `glasshouse monitor` or `measure` has a change from the first to the last checkpoint, or null. */
export type Measure = MeasureSpec & { points: Point[]; change?: Estimate | null };

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
  tabs: string[];
  /** The line below its name. */
  facts: string;
  config_text: string;
  /** Panels in their order. */
  families: string[];
  metrics: { steps: number[]; columns: Record<string, Value[]>; measures: Record<string, MeasureSpec> };
  /** Steps in the log, if the curves of a file hold fewer. */
  logged_steps?: number;
  /** Of its evaluations, then of `glasshouse monitor`. */
  measures: Record<string, Measure>;
  /** Of a file: the name of the checkpoint at each step. */
  names: Record<string, string>;
  /** Of a file: sentences about the measures, why others are undefined, and how it was measured. */
  said: string[];
  unsaid: string[];
  settings: Record<string, string>;
  marks: Mark[];
  /** Steps whose checkpoints are kept. */
  checkpoints: number[];
  verdict: string;
  /** What `glasshouse predict` said before: [step, median, low, high] by measure. */
  prediction: { verdict: string; basis: string; horizon: number; curves: Record<string, CurvePoint[]> } | null;
  /** NOTES.md of the run, in Markdown. */
  notebook: string;
  versions: Record<string, string>;
  /** Monitors that cannot be applied. */
  notes: string[];
  commands: Record<string, string>;
  damage: { file: string; problem: string; remedy: string }[];
}

/** A rollout (shared/glasshouse/types.py); in a list its texts are shortened. */
export interface Rollout {
  ref: string;
  step: number;
  split: string;
  arm: string;
  checkpoint: string;
  group: number;
  sample: number;
  key: string;
  question: string;
  prompt: string;
  text: string;
  characters: number;
  answer_start: number;
  gold_answer: string;
  model_answer: string | null;
  rule: string;
  reason: string;
  length: Value;
  finish_reason: string;
  reward: Value;
  terms: Record<string, number>;
  correct: boolean | null;
  behaviour: boolean | null;
  advantage: Value;
  verdicts: Record<string, { score: Value; flagged: boolean | null; reason: string }>;
  marks: TextMark[];
  /** The values of each filter that counts values; `label` is what a person said. */
  facets: Record<string, string[]>;
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

/** A measure by arm: the mean over seeds with its interval, and single runs. */
export interface ArmCurves {
  label: string;
  sentence: string;
  unit: string;
  bounds: Bounds;
  arms: Record<string, { runs: { run: string; points: CurvePoint[] }[]; band: CurvePoint[] }>;
}

export interface Comparison {
  verdict: string;
  /** Runs beyond the largest number that can be compared. */
  left_out: number;
  runs: { id: string; status: Status; seed: number; arm: string }[];
  differences: { key: string; values: Record<string, unknown> }[];
  curves: Record<string, ArmCurves>;
}

export interface StudyResults {
  id: string;
  problem: string;
  /** Of a report: the whole page of the study in Markdown. */
  text?: string;
  runs: string[];
  title: string;
  about: string;
  headline: string;
  arms: string[];
  questions: Record<string, unknown>[];
  curves: Record<string, ArmCurves>;
}

/** The data of a report, inside its file (shared/glasshouse/view/report.py). */
export interface Snapshot {
  runs: Overview[];
  run: Record<string, Run>;
  rollouts: Record<string, { rows: Rollout[]; problems: Problem[]; total: number; damage: string[] }>;
  compare: Comparison | null;
  study?: StudyResults;
}
