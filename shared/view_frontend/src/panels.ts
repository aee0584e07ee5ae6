// Which curves a run's page shows, in which order, with units.

import type { ChartSpec, Line } from "./chart";
import { smooth, type XY } from "./series";
import type { Measure, Run } from "./types";

const RULES = ["tag", "boxed", "phrase", "last", "none"];
const PHASES = ["sample", "generate", "reward", "learn", "sync", "log"];
const DETAILS = /accuracy|cot_|_tokens|parse_failure|tpr|tnr|rollouts|informedness|gmean/;

export function runPanels(run: Run, from: number, to: number, window: number): ChartSpec[] {
  const { steps, columns } = run.metrics;
  const column = (name: string): XY[] => (columns[name] ?? []).map((value, i) => [steps[i]!, value]);
  const line = (name: string, label: string, color = 0): Line => {
    const raw = column(name);
    return window > 1 ? { name: label, color, points: smooth(raw, window), raw } : { name: label, color, points: raw };
  };
  const base = { from, to, marks: run.marks };
  const panels: ChartSpec[] = [];
  const add = (title: string, unit: string, help: string, lines: Line[], bounds: [number, number] | null = null): void => {
    const present = lines.filter((l) => l.points.some((p) => p[1] !== null));
    if (present.length) panels.push({ ...base, title, unit, help, lines: present, bounds });
  };

  add("Reward", "mean per step", "Mean reward of the step's rollouts.", [line("reward", "Reward")]);
  add("Held-out accuracy", "share, 95 % interval", "Accuracy on held-out problems, sampled and greedy; thin line: training samples.",
    [...accuracyLines(run), { ...line("accuracy", "training samples", 5), dashed: true }], [0, 1]);
  for (const spec of monitorPanels(run, base)) panels.push(spec);
  add("CoT length", "characters", "Mean number of characters before the answer.", [line("cot_characters", "CoT length")]);
  add("Completion length", "tokens", "Mean number of tokens of a completion, chain of thought and answer.", [line("length", "Completion length")]);
  add("KL from the start", "nats per token", "Mean divergence of the policy from its starting weights.", [line("kl", "KL from the start")]);
  add("Entropy", "nats per token", "Minus the mean log-probability of the sampled tokens.", [line("entropy", "Entropy")]);
  add("Zero-variance groups", "share", "Groups whose rewards are all equal: without a baseline difference they teach nothing.", [line("frac_zero_std", "Zero-variance groups")], [0, 1]);
  add("Extraction rules", "share", "Which rule extracted the answer. A rising share of the last-number rule is a sign of gaming.",
    RULES.map((rule, i) => line(`rule_${rule}`, rule, i)).filter((l) => l.points.some((p) => (p[1] ?? 0) > 0)), [0, 1]);
  add("Log-probability difference", "sampler − learner", "Mean absolute difference between the sampler's and the learner's log-probabilities.", [line("logprob_diff", "mean"), line("logprob_diff_max", "largest", 1)]);
  add("Time per phase", "seconds", "Seconds of each phase of a step.",
    PHASES.map((phase, i) => line(columns[`seconds_${phase}`] ? `seconds_${phase}` : phase, phase, i)).filter((l) => l.points.length));
  add("Gradient norm", "before clipping", "Norm of the gradient before it is clipped.", [line("grad_norm", "Gradient norm")]);
  return panels;
}

/** The figures of the verdict: held-out accuracy, and the first measures of monitorability. */
export function leadPanels(run: Run): ChartSpec[] {
  const points = [...run.accuracy, ...Object.values(run.measures)].flatMap((m) => m.points.map((p) => p.step));
  const base = { from: 0, to: Math.max(run.step, 1, ...points), marks: [] };
  const accuracy: ChartSpec = { ...base, title: "Held-out accuracy", unit: "share, 95 % interval", bounds: [0, 1], lines: accuracyLines(run) };
  return [...(accuracy.lines.length ? [accuracy] : []), ...monitorPanels(run, base).slice(0, 2)];
}

function accuracyLines(run: Run): Line[] {
  return run.accuracy.map((measure, i) => ({ ...measureLine(measure, i ? 3 : 0), name: measure.label.replace("accuracy, ", "") }));
}

function measureLine(measure: Measure, color: number): Line {
  return {
    name: measure.label, color, dots: true, whiskers: true,
    points: measure.points.map((p) => [p.step, p.value]),
    band: measure.points.map((p) => [p.step, p.low, p.high]),
  };
}

function monitorPanels(run: Run, base: Pick<ChartSpec, "from" | "to" | "marks">): ChartSpec[] {
  const shown = Object.entries(run.measures).filter(([id, m]) => !DETAILS.test(id) && m.points.some((p) => p.value !== null));
  const byFamily = new Map<string, [string, Measure][]>();
  for (const [id, measure] of shown) {
    const family = familyOf(id);
    if (family) byFamily.set(family, [...(byFamily.get(family) ?? []), [id, measure]]);
  }
  return [...byFamily].map(([title, measures]) => ({
    ...base,
    title,
    unit: "95 % intervals",
    help: measures.map(([, m]) => `${m.label}: ${m.definition}`).join("\n"),
    bounds: measures.every(([, m]) => m.bounds && m.bounds[0] === 0 && m.bounds[1] === 1) ? ([0, 1] as [number, number]) : null,
    lines: measures.slice(0, 6).map(([, m], i) => measureLine(m, i)),
  }));
}

function familyOf(id: string): string | null {
  const name = id.split(".").at(-1)!;
  if (["reliance", "behaviour", "shortcut"].includes(id)) return "Planted behaviour";
  if (/undetected_use/.test(name) && !id.startsWith("organism.")) return "Undetected use";
  if (/disclosure$/.test(name) && !id.startsWith("organism.")) return "Disclosure";
  if (!id.includes(".")) return null;
  if (["necessity_uplift", "early_answering_aoc", "mistake_follow", "step_validity", "has_cot", "step_coverage"].includes(name)) return "Does the answer depend on the CoT?";
  if (name === "flag_rate") return "Flagged by monitors";
  if (name === "auroc" && /rule|verifier/.test(id)) return "Monitors, AUROC";
  if (["reliance", "hint_necessity"].includes(name) || /swap/.test(name)) return "Planted behaviour, by intervention";
  return null;
}
