// All runs: status, progress, accuracy and monitorability; pick several to compare.

import { get, listen } from "../api";
import { h, notice, replace, select, type View, type Child } from "../dom";
import { ago, duration, interval, number, plural } from "../format";
import { current, link, setParams } from "../router";
import type { Measure, Overview, RunList } from "../types";
import { statusBadge, tableRegion } from "./parts";

interface Column {
  key: string;
  title: string;
  /** What the column is sorted by. */
  value: (run: Overview) => string | number;
  cell: (run: Overview) => Node | string;
  numeric?: boolean;
}

const STATUSES = ["running", "finished", "interrupted", "failed", "empty", "file"];
const COLUMNS: Column[] = [
  { key: "id", title: "Run", value: (r) => r.id, cell: nameCell },
  { key: "status", title: "Status", value: (r) => r.status, cell: (r) => statusBadge(r.status) },
  { key: "task", title: "Task", value: (r) => r.task, cell: (r) => r.task },
  { key: "algorithm", title: "Algorithm, model", value: (r) => `${r.algorithm} ${r.model}`, cell: (r) => h("span", {}, r.algorithm, h("small", { class: "clip", title: r.model }, r.model)) },
  { key: "step", title: "Step", value: (r) => r.step, cell: (r) => (r.status === "file" ? "" : `${r.step} / ${r.steps}`), numeric: true },
  { key: "accuracy", title: "Held-out accuracy", value: (r) => lastValue(r.accuracy), cell: (r) => measureCell(r.accuracy, r), numeric: true },
  { key: "monitorability", title: "Monitorability", value: (r) => lastValue(r.monitorability), cell: (r) => measureCell(r.monitorability, r), numeric: true },
  { key: "left", title: "Time left", value: (r) => r.seconds_left ?? -1, cell: (r) => duration(r.seconds_left) || "–", numeric: true },
  { key: "updated", title: "Updated", value: (r) => r.updated, cell: (r) => ago(r.updated), numeric: true },
];

function nameCell(run: Overview): HTMLElement {
  return h("span", {}, h("a", { href: link("run", run.id, run.status === "file" ? "overview" : ""), class: "run-name", title: run.id }, run.id.split("/").flatMap((part, i): Child[] => (i ? ["/", h("wbr"), part] : [part]))),
    run.damage.length ? h("small", { class: "warn", title: run.damage.join("\n") }, " damaged") : null);
}

function lastValue(measure: Measure | null): number {
  return measure?.points.at(-1)?.value ?? -1;
}

function measureCell(measure: Measure | null, run: Overview): HTMLElement {
  const end = measure?.points.at(-1);
  if (run.status === "file") return h("span");
  if (!measure || !end) return h("small", { class: "muted" }, "not measured");
  const name = measure.label.replace("accuracy, ", "").replace(/,.*/, "");
  return h("span", {}, h("b", {}, number(end.value)), h("small", { title: `${measure.label}: ${measure.sentence}` }, `${name} ${interval(end.low, end.high)}`));
}

/** The heading of a column, which sorts by it. */
function heading(column: Column, sort: string): HTMLElement {
  const direction = sort.replace("-", "") === column.key ? (sort.startsWith("-") ? "descending" : "ascending") : "none";
  const next = sort === column.key ? `-${column.key}` : column.key;
  return h("th", { scope: "col", "aria-sort": direction, class: column.numeric ? "numeric" : "" },
    h("button", { type: "button", onclick: () => setParams({ sort: next }) }, column.title, direction === "none" ? null : h("i", { "aria-hidden": "true" }, direction === "ascending" ? "↑" : "↓")));
}

function selectRuns(runs: Overview[], params: URLSearchParams, sort: string): Overview[] {
  const [text, status] = [(params.get("text") ?? "").toLowerCase(), params.get("status")];
  const column = COLUMNS.find((c) => c.key === sort.replace("-", "")) ?? COLUMNS[0]!;
  const sign = sort.startsWith("-") ? -1 : 1;
  return runs
    .filter((r) => (!status || r.status === status) && [r.id, r.task, r.algorithm, r.model, r.study].join(" ").toLowerCase().includes(text))
    .sort((a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      return sign * (x < y ? -1 : x > y ? 1 : a.id.localeCompare(b.id));
    });
}

/** The page of the only study or run that is served. */
function onlyPage({ runs, studies }: RunList): string | null {
  if (studies.length === 1 && runs.every((r) => r.study === studies[0])) return link("study", studies[0]!);
  return runs.length === 1 && !studies.length ? link("run", runs[0]!.id, runs[0]!.status === "file" ? "overview" : "") : null;
}

export function runsView(root: HTMLElement, onlive: (connected: boolean) => void): View {
  let list: RunList | null = null;
  const search = h("input", { type: "search", placeholder: "name, task, model…", "aria-label": "Filter runs", oninput: () => setParams({ text: search.value }) });
  const head = h("div");
  const body = h("div", {}, notice("loading", "Reading the runs…"));
  const filter = h("label", { class: "field grow" }, h("span", {}, "Filter"), search);
  const options = h("div", { class: "toolbar slim" });
  replace(root, head, h("div", { class: "toolbar" }, filter, options), body);

  const load = async (): Promise<void> => {
    try {
      list = await get<RunList>("runs");
      const only = location.hash ? null : onlyPage(list);
      if (only) return location.replace(only);
      render();
    } catch (error) {
      if (!list) replace(body, notice("error", "The runs cannot be read.", (error as Error).message));
    }
  };

  const render = (): void => {
    if (!list) return;
    const { params } = current();
    const sort = params.get("sort") ?? "-updated";
    const picked = new Set((params.get("pick") ?? "").split("|").filter(Boolean));
    const runs = selectRuns(list.runs, params, sort);
    if (document.activeElement !== search) search.value = params.get("text") ?? "";
    replace(head, h("div", { class: "title-row" }, h("h1", {}, "Runs"), h("p", { class: "muted" }, `${plural(list.runs.length, "run")} in ${list.roots.join(", ")}`)),
      list.studies.length ? h("p", { class: "studies" }, "Studies: ", list.studies.map((id) => h("a", { href: link("study", id) }, id))) : null);
    replace(options,
      select("Status", params.get("status") ?? "", [["", "all"], ...STATUSES.map((name): [string, string] => [name, name])], (status) => setParams({ status })),
      picked.size < 2 ? h("span", { class: "hint" }, "Pick runs to compare them.")
        : h("a", { class: "button primary", href: link("compare", "", "", { runs: [...picked].join("|") }) }, `Compare ${picked.size} runs`));
    const pick = (id: string): HTMLElement => h("input", { type: "checkbox", checked: picked.has(id), "aria-label": `Compare ${id}`, onchange: () => {
      if (!picked.delete(id)) picked.add(id);
      setParams({ pick: [...picked].join("|") });
    } });
    const row = (run: Overview): HTMLElement => h("tr", {}, h("td", {}, run.status === "file" ? null : pick(run.id)),
      COLUMNS.map((c) => h("td", { "data-label": c.title, class: c.numeric ? "numeric" : "" }, c.cell(run))));
    replace(body,
      tableRegion("Runs", [h("th", { scope: "col" }, h("span", { class: "offscreen" }, "Compare")), ...COLUMNS.map((c) => heading(c, sort))], runs.map(row), "runs"),
      runs.length ? null
        : list.runs.length ? notice("empty", "No run matches the filter.", "Change or clear it.")
        : notice("empty", "There is no run here yet.", `Start one with \`glasshouse train\` or \`make demo\`; it appears here when it begins. Folders: ${list.roots.join(", ")}`));
  };

  void load();
  const stop = listen("", () => void load(), onlive);
  const clock = window.setInterval(() => { if (!document.hidden) render(); }, 15_000);
  return { update: render, destroy: () => { stop(); window.clearInterval(clock); } };
}
