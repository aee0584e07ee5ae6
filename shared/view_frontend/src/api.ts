// Requests to the server, or to the data inside a report. Every path is relative: the page talks to
// nobody else.

import { answerFrom, readSnapshot, type Params } from "./snapshot";
import type { Run } from "./types";

/** The data of a report; null on the live page. */
export const snapshot = readSnapshot();

export async function get<T>(name: string, params: Params = {}, signal?: AbortSignal): Promise<T> {
  if (snapshot) return answerFrom(snapshot, name, params) as T;
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (Array.isArray(value)) value.forEach((item) => query.append(key, item));
    else if (value !== null && value !== undefined && value !== "") query.set(key, String(value));
  }
  let response: Response;
  try {
    response = await fetch(`api/${name}?${query}`, { signal: signal ?? null });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new Error("The server does not answer. Is `glasshouse view` still running?");
  }
  if (response.status === 401) throw new Error(await response.text());
  const content: unknown = await response.json().catch(() => null);
  if (!response.ok || content === null) {
    const message = (content as { error?: string } | null)?.error;
    throw new Error(message ?? `The server answered with ${response.status}.`);
  }
  return content as T;
}

let pageToken = "";

/** Label a rollout: 1, 0, or null to remove its label. */
export async function setLabel(run: string, ref: string, label: number | null): Promise<void> {
  pageToken ||= (await get<{ token: string }>("info")).token;
  const headers = { "Content-Type": "application/json", "X-Glasshouse-Page": pageToken };
  const response = await fetch("api/label", { method: "POST", headers, body: JSON.stringify({ run, ref, label }) });
  if (!response.ok) throw new Error(((await response.json().catch(() => null)) as { error?: string } | null)?.error ?? "The server refused the label. Load the page again.");
}

/** Call `onchange` when the run, or any run, has changed; returns a function that ends this. */
export function listen(run: string, onchange: () => void, onstate: (connected: boolean) => void): () => void {
  if (snapshot) return () => undefined;
  const source = new EventSource(`api/events?run=${encodeURIComponent(run)}`);
  source.onopen = () => onstate(true);
  source.onerror = () => onstate(false); // the browser connects again by itself
  source.addEventListener("changed", onchange);
  return () => source.close();
}

/** One run, kept up to date: whenever the server says that it has changed, it is read again. */
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
