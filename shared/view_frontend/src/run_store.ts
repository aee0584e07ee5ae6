// One run, kept up to date: whenever the server says that it has changed, it is read again.

import { get, listen } from "./api";
import type { Run } from "./types";

export class RunStore {
  run: Run | null = null;
  error = "";
  private readonly listeners = new Set<() => void>();
  private stop: (() => void) | null = null;

  constructor(readonly id: string, private readonly onlive: (connected: boolean) => void) {}

  async start(): Promise<void> {
    await this.load();
    if (!this.error) this.stop = listen(this.id, () => void this.load(), this.onlive);
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  destroy(): void {
    this.stop?.();
    this.listeners.clear();
  }

  private async load(): Promise<void> {
    try {
      const run = await get<Run>("run", { run: this.id });
      if (run.version === this.run?.version) return;
      this.run = run;
    } catch (error) {
      if (this.run) return; // the stream says that the server is gone
      this.error = (error as Error).message;
    }
    this.listeners.forEach((listener) => listener());
  }
}
