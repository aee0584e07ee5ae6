// The JSON of the server (shared/glasshouse/view/app.py).

export type Value = number | null;

export interface Point {
  step: number;
  value: Value;
  low: Value;
  high: Value;
  null?: Value;
  n?: number;
}

export interface Measure {
  label: string;
  unit: string;
  bounds: [number, number] | null;
  direction: "higher" | "lower" | "none";
  definition: string;
  points: Point[];
}

export interface Overview {
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
  reward: Value;
  seconds_left: Value;
  updated: string;
  accuracy: Point[];
  train_accuracy: [number, Value][];
  monitorability: (Measure & { id: string }) | null;
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

export interface Damage {
  file: string;
  problem: string;
  remedy: string;
}

export interface Run {
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
  version: number;
  generation: number;
  config: Record<string, unknown>;
  config_text: string;
  metrics: { steps: number[]; columns: Record<string, Value[]> };
  evaluations: (Record<string, unknown> & { step: number })[];
  measures: Record<string, Measure>;
  marks: Mark[];
  checkpoints: { step: number; reason: string; reward: Value; bytes: Value }[];
  verdict: string;
  summary: Record<string, unknown> | null;
  commands: Record<string, string>;
  damage: Damage[];
}

export interface RolloutRow {
  ref: string;
  kind: string;
  step: number;
  group: number;
  sample: number;
  split: string;
  reward: Value;
  advantage: Value;
  correct: boolean | null;
  rule: string;
  stop: string;
  arm: string;
  length: Value;
  flagged: string[];
  passed: string[];
  suspicions: string[];
  key: string;
  question: string;
  text: string;
  answer: string | null;
  gold: string | null;
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
}

export interface Verdict {
  score: Value;
  flagged: boolean | null;
  reason: string;
}

export interface Rollout {
  ref: string;
  kind: string;
  step: number;
  split: string;
  group: number;
  sample: number;
  task: string;
  key: string;
  level: string;
  question: string;
  gold: string | null;
  prompt: string;
  completion: string;
  characters: number;
  answer_start: number;
  stop: string;
  reward: Value;
  terms: Record<string, number>;
  correct: boolean | null;
  answer: string | null;
  rule: string;
  ambiguous: boolean;
  reason: string;
  advantage: Value;
  version: Value;
  length: Value;
  behaviour: Value;
  subject: string | null;
  verdicts: Record<string, Verdict>;
  suspicions: { id: string; label: string; reason: string }[];
  has_tokens: boolean;
}

export interface Tokens {
  pieces: string[];
  logprobs: number[];
  entropies?: number[];
  checkpoint?: number;
  advantage: Value;
}

export interface SuspiciousGroup {
  id: string;
  label: string;
  count: number;
  examples: Rollout[];
}

export interface Comparison {
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

export interface Effect {
  effect: Value;
  low: Value;
  high: Value;
  n: number;
  p_holm: Value;
  p: Value;
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
  measures: Record<string, Omit<Measure, "points">>;
}

export interface Timeline {
  spans: { step: number; phase: string; lane: string; start: number; end: number }[];
  events: { kind: string; time: number; step: number | null; text: string; seconds: Value; process: string }[];
  lanes: string[];
  origin: number | null;
  first: number;
  last: number;
  step: number;
}
