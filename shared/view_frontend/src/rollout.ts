// A row of the rollout log, written by tools/rollout_type.py from shared/glasshouse/types.py.

export interface Rollout {
  step: number;
  split: string;
  arm: string;
  group: number;
  sample: number;
  seed: number;
  checkpoint: string;
  task: string;
  key: string;
  question: string;
  gold_answer: string;
  answer_kind: string;
  decimals: number;
  level: string;
  meta: Record<string, unknown>;
  messages: { role: string; content: string }[];
  prompt: string;
  prompt_tokens: number[] | null;
  text: string;
  cot: string | null;
  tokens: number[] | null;
  logprobs: number[] | null;
  length: number | null;
  finish_reason: string;
  policy_version: number | null;
  reward: number | null;
  terms: Record<string, number>;
  correct: boolean | null;
  lenient: boolean | null;
  strict: boolean | null;
  has_answer_tag: boolean | null;
  model_answer: string | null;
  rule: string;
  span: [number, number] | null;
  ambiguous: boolean;
  reason: string;
  behaviour: boolean | null;
  advantage: number | null;
  activations: number[] | null;
  time: number;
}
