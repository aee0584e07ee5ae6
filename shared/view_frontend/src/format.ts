// Numbers, times and model text as people read them.

export function number(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const text = plain(value, digits);
  return (/[1-9]/.test(text) ? text : text.replace("-", "")).replace("-", "−");
}

function plain(value: number, digits: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1).replace("e-", "e−");
  if (Number.isInteger(value) && size >= 10) return value.toLocaleString("en-US");
  return value.toFixed(size >= 1000 ? 0 : size >= 10 ? Math.min(digits, 1) : digits);
}

export function count(value: number): string {
  return value.toLocaleString("en-US");
}

export function plural(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function interval(low: number | null, high: number | null): string {
  return low === null || high === null ? "" : `${number(low, 2)}–${number(high, 2)}`;
}

export function duration(seconds: number | null): string {
  if (seconds === null) return "";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86400) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

export function ago(time: string): string {
  const then = Date.parse(time);
  if (Number.isNaN(then)) return "";
  const seconds = (Date.now() - then) / 1000;
  return seconds < 5 ? "now" : `${duration(seconds)} ago`;
}

const NAMES: Record<number, string> = { 0x1b: "␛", 0x7f: "␡" };

/** Text of a model with its invisible characters made visible: control codes, marks of direction. */
export function visible(text: string): string {
  // eslint-disable-next-line no-control-regex
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, (c) => {
    const code = c.charCodeAt(0);
    if (NAMES[code]) return NAMES[code]!;
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

export function label(name: string): string {
  return name.replaceAll("_", " ");
}
