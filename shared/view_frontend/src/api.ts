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

/** Server-sent events; returns a function that ends the stream. */
export function listen(
  run: string,
  since: () => number,
  handlers: Record<string, (data: never) => void>,
  onstate: (connected: boolean) => void,
): () => void {
  if (snapshot) return () => undefined;
  let source: EventSource | null = null;
  let timer = 0;
  const open = (): void => {
    const query = run ? `?run=${encodeURIComponent(run)}&since=${since()}` : "";
    source = new EventSource(`api/events${query}`);
    source.onopen = () => onstate(true);
    source.onerror = () => {
      // Open a new stream instead of the browser's retry, which would ask for old steps again.
      onstate(false);
      source?.close();
      window.clearTimeout(timer);
      timer = window.setTimeout(open, 1500);
    };
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handler(JSON.parse((event as MessageEvent<string>).data) as never));
    }
  };
  open();
  return () => {
    window.clearTimeout(timer);
    source?.close();
  };
}
