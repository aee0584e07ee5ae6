// The JSON of the server (shared/glasshouse/view/app.py).

import type { Rollout as RolloutFields } from "./rollout";

export type Value = number | null;

export interface Point {
  step: number;
  value: Value;
  low: Value;
  high: Value;
  null?: Value;
  /** One-sided p of the null. */
  p?: Value;
  ceiling?: Value;
  n?: number;
}

/** What the registry knows about a measure. */
export interface MeasureSpec {
  label: string;
  sentence: string;
  /** The title of its panel; empty if it is not drawn. */
  family: string;
  unit: string;
  bounds: [number, number] | null;
  /** Explains other measures; shown in a table of its own. */
  detail: boolean;
}

export type Measure = MeasureSpec & { points: Point[] };

export type NamedMeasure = Measure & { id: string };

export interface EndRow {
  id: string;
  label: string;
  sentence: string;
  before: Omit<Point, "step">;
  after: Omit<Point, "step">;
}

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
  accuracy: NamedMeasure | null;
  train_accuracy: [number, Value][];
  monitorability: NamedMeasure | null;
  damage: string[];
}

export type Status = "running" | "finished" | "interrupted" | "failed" | "empty";

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
  generation: number;
  config: Record<string, unknown>;
  config_text: string;
  /** Panels in their order. */
  families: string[];
  metrics: { steps: number[]; columns: Record<string, Value[]>; measures: Record<string, MeasureSpec> };
  /** Steps in the log, if the curves of a file hold fewer. */
  logged_steps?: number;
  /** Sampled accuracy, then greedy accuracy. */
  accuracy: NamedMeasure[];
  measures: Record<string, Measure>;
  changes: Record<string, Omit<Point, "step">>;
  /** Evaluations before and after training, and the headline accuracy by difficulty level. */
  ends: { problems: Value; rows: EndRow[]; level_label: string; levels: EndRow[] };
  marks: Mark[];
  /** Steps whose checkpoints are kept. */
  checkpoints: number[];
  verdict: string;
  sessions: Record<string, string>;
  versions: Record<string, string>;
  /** Monitors that cannot be applied. */
  notes: string[];
  commands: Record<string, string>;
  damage: { file: string; problem: string; remedy: string }[];
}

/** What a list shows of a rollout: texts are shortened. */
export interface RolloutRow
  extends Pick<
    RolloutFields,
    | "step" | "split" | "arm" | "group" | "sample" | "key" | "question" | "gold_answer" | "text" | "length"
    | "finish_reason" | "reward" | "correct" | "model_answer" | "rule" | "advantage"
  > {
  ref: string;
  flagged: string[];
  passed: string[];
  suspicions: string[];
}

export interface RolloutPage {
  total: number;
  matching: number;
  rows: RolloutRow[];
  histogram: { edges: number[]; all: number[]; selected: number[] };
  facets: Record<string, Record<string, number>>;
  monitors: string[];
  indexed_frames: number;
  frames: number;
  damage: string[];
  /** Which rollouts a file holds. */
  note?: string;
}

export interface Verdict {
  score: Value;
  flagged: boolean | null;
  reason: string;
}

/** A rollout in full; its tokens are another request. */
export interface Rollout extends RolloutFields {
  ref: string;
  characters: number;
  answer_start: number;
  verdicts: Record<string, Verdict>;
  suspicions: { id: string; label: string; reason: string }[];
  has_tokens: boolean;
}

export interface Tokens {
  pieces: string[];
  logprobs: number[];
  advantage: Value;
}

export interface SuspiciousGroup {
  id: string;
  label: string;
  count: number;
  examples: Rollout[];
}

export interface SuspiciousAnswer {
  groups: SuspiciousGroup[];
  total: number;
  indexed_frames: number;
  frames: number;
}

export interface Highlight {
  reason: string;
  rollout: Rollout;
}

export interface Problem {
  key: string;
  question: string;
  before: number;
  after: number;
}

export interface Comparison {
  verdict: string;
  /** Runs beyond the largest number that can be compared. */
  left_out: number;
  runs: { id: string; status: Status; seed: number; arm: string }[];
  differences: { key: string; values: Record<string, unknown> }[];
  curves: Record<
    string,
    {
      label: string;
      unit: string;
      bounds: [number, number] | null;
      arms: Record<
        string,
        { runs: { run: string; points: [number, Value, Value, Value][] }[]; band: [number, Value, Value, Value][] }
      >;
    }
  >;
}

export interface StudyResults {
  problem: string;
  id: string;
  runs: string[];
  title: string;
  about: string;
  headline: string;
  arms: string[];
  questions: Record<string, unknown>[];
  curves: {
    arm: string;
    measure: string;
    steps: number[];
    mean: Value[];
    low: Value[];
    high: Value[];
  }[];
  measures: Record<string, MeasureSpec>;
}

/** The data of a report, inside its file (shared/glasshouse/view/snapshot.py). */
export interface Snapshot {
  suspicions: Record<string, string>;
  runs: Overview[];
  run: Record<string, Run>;
  rollouts: Record<string, SampledRollouts>;
  compare: Comparison | null;
}

export interface SampledRollouts {
  rows: Rollout[];
  highlights: { reason: string; ref: string }[];
  suspicious: (Omit<SuspiciousGroup, "examples"> & { examples: string[] })[];
  problems: Problem[];
  monitors: string[];
  /** Rollouts that were searched for suspicious ones. */
  checked: number;
  /** Rollouts of the run. */
  total: number;
  damage: string[];
}
