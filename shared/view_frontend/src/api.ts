// Requests to the server, or to the data inside a report. Every path is relative: the page talks to
// nobody else.

import { answerFrom, readSnapshot, type Params } from "./snapshot";

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

/** Call `onchange` when the run, or any run, has changed; returns a function that ends this. */
export function listen(run: string, onchange: () => void, onstate: (connected: boolean) => void): () => void {
  if (snapshot) return () => undefined;
  const source = new EventSource(`api/events?run=${encodeURIComponent(run)}`);
  source.onopen = () => onstate(true);
  source.onerror = () => onstate(false); // the browser connects again by itself
  source.addEventListener("changed", onchange);
  return () => source.close();
}
