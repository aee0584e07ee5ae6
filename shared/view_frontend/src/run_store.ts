// One run, kept up to date: the first answer has everything, the stream adds the steps that are new.

import { get, listen } from "./api";
import type { Run } from "./types";

export class RunStore {
  run: Run | null = null;
  error = "";
  private readonly listeners = new Set<() => void>();
  private stop: (() => void) | null = null;

  constructor(readonly id: string, private readonly onlive: (connected: boolean) => void) {}

  async start(): Promise<void> {
    try {
      this.run = await get<Run>("run", { run: this.id });
    } catch (error) {
      this.error = (error as Error).message;
    }
    this.notify();
    if (!this.error) this.stop = listen(this.id, () => this.run?.metrics.steps.at(-1) ?? -1, { run: (data: Run) => this.merge(data) }, this.onlive);
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  destroy(): void {
    this.stop?.();
    this.listeners.clear();
  }

  private merge(update: Run): void {
    const old = this.run;
    if (old && old.version === update.version && old.generation === update.generation) return;
    if (old && old.generation === update.generation) update.metrics = appendColumns(old.metrics, update.metrics);
    this.run = update;
    this.notify();
  }

  private notify(): void {
    this.listeners.forEach((listener) => listener());
  }
}

type Metrics = Run["metrics"];

/** The columns of both; steps that the second repeats are taken from the first. */
export function appendColumns(old: Metrics, added: Metrics): Metrics {
  const end = old.steps.at(-1) ?? -Infinity;
  const from = added.steps.findIndex((step) => step > end);
  if (from < 0) return old;
  const names = new Set([...Object.keys(old.columns), ...Object.keys(added.columns)]);
  const columns: Metrics["columns"] = {};
  for (const name of names) {
    columns[name] = [
      ...(old.columns[name] ?? old.steps.map(() => null)),
      ...(added.columns[name] ?? added.steps.map(() => null)).slice(from),
    ];
  }
  return { steps: [...old.steps, ...added.steps.slice(from)], columns, measures: { ...old.measures, ...added.measures } };
}
