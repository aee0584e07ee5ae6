// All runs: status, progress, accuracy and monitorability; pick several to compare.

import { get, listen } from "../api";
import type { XY } from "../series";
import { sparkline } from "../sparkline";
import { h, notice, replace, select, tableRegion } from "../dom";
import { tableButtons, type Table } from "../export";
import { ago, duration, interval, number, plural } from "../format";
import { current, link, setParams } from "../router";
import type { Overview, RunList, Status } from "../types";
import type { View } from "../view";

const STATUS_MARK: Record<Status, string> = {
  running: "●", finished: "✓", interrupted: "‖", failed: "✕", empty: "○",
};

interface Column {
  key: string;
  title: string;
  value: (run: Overview) => string | number;
  cell: (run: Overview) => Node | string | null;
  numeric?: boolean;
}

const lastPoint = <T extends { value: number | null }>(points: T[]): T | undefined => points.at(-1);

const COLUMNS: Column[] = [
  { key: "id", title: "Run", value: (r) => r.id, cell: (r) => h("a", { href: link("run", r.id), class: "run-name", title: r.id }, r.id) },
  { key: "status", title: "Status", value: (r) => r.status, cell: (r) => statusBadge(r.status) },
  { key: "task", title: "Task", value: (r) => r.task, cell: (r) => r.task },
  { key: "algorithm", title: "Algorithm, model", value: (r) => `${r.algorithm} ${r.model}`, cell: (r) => h("span", {}, r.algorithm, h("small", { class: "clip", title: r.model }, r.model)) },
  { key: "step", title: "Step", value: (r) => r.step, cell: progress, numeric: true },
  { key: "accuracy", title: "Held-out accuracy", value: (r) => lastPoint(r.accuracy?.points ?? [])?.value ?? -1, cell: accuracyCell, numeric: true },
  { key: "monitorability", title: "Monitorability", value: (r) => lastPoint(r.monitorability?.points ?? [])?.value ?? -1, cell: monitorCell, numeric: true },
  { key: "left", title: "Time left", value: (r) => r.seconds_left ?? -1, cell: (r) => (r.status === "running" ? duration(r.seconds_left) || "–" : "–"), numeric: true },
  { key: "updated", title: "Updated", value: (r) => r.updated, cell: (r) => ago(r.updated), numeric: true },
];

export function statusBadge(status: Status): HTMLElement {
  return h("span", { class: `badge ${status}` }, h("i", { "aria-hidden": "true" }, STATUS_MARK[status]), status === "empty" ? "not started" : status);
}

function progress(run: Overview): HTMLElement {
  const share = run.steps ? Math.min(1, run.step / run.steps) : 0;
  const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("i"));
  (bar.firstChild as HTMLElement).style.width = `${share * 100}%`;
  return h("span", { class: "progress" }, `${run.step} / ${run.steps}`, bar);
}

function accuracyCell(run: Overview): HTMLElement | null {
  const evaluations = run.accuracy?.points ?? [];
  const end = lastPoint(evaluations);
  const points: XY[] = evaluations.length > 2 ? evaluations.map((p) => [p.step, p.value]) : run.train_accuracy;
  const what = evaluations.length > 2 ? `held-out ${run.accuracy!.label}` : "accuracy of training samples";
  return h(
    "span",
    { class: "with-spark" },
    h("span", {}, h("b", {}, end ? number(end.value) : "–"), end ? h("small", { title: run.accuracy!.sentence }, `${run.accuracy!.label.replace("accuracy, ", "")} ${interval(end.low, end.high)}`) : null),
    points.length > 1 ? sparkline(points, `${what} by step`, [0, 1], 0) : null,
  );
}

function monitorCell(run: Overview): HTMLElement | string {
  const measure = run.monitorability;
  const end = measure && lastPoint(measure.points);
  if (!measure || !end) return h("small", { class: "muted" }, "not measured");
  return h(
    "span",
    { class: "with-spark" },
    h("span", {}, h("b", {}, number(end.value)), h("small", { title: measure.sentence }, measure.label)),
    measure.points.length > 1 ? sparkline(measure.points.map((p) => [p.step, p.value]), `${measure.label} by step`, measure.bounds, 1) : null,
  );
}

/** The heading of a column, which sorts by it. */
function heading(column: Column, sort: string): HTMLElement {
  const direction = sort.replace("-", "") === column.key ? (sort.startsWith("-") ? "descending" : "ascending") : "none";
  const next = sort === column.key ? `-${column.key}` : column.key;
  return h("th", { scope: "col", "aria-sort": direction, class: column.numeric ? "numeric" : "" },
    h("button", { type: "button", onclick: () => setParams({ sort: next }) }, column.title, h("i", { "aria-hidden": "true" }, { none: "", ascending: " ↑", descending: " ↓" }[direction])));
}

export function runsView(root: HTMLElement, onlive: (connected: boolean) => void): View {
  let list: RunList | null = null;
  const body = h("div");
  replace(root, body);
  replace(body, notice("loading", "Reading the runs…"));

  const selected = (): string[] => (current().params.get("pick") ?? "").split("|").filter(Boolean);

  const load = async (): Promise<void> => {
    try {
      list = await get<RunList>("runs");
      render();
    } catch (error) {
      if (!list) replace(body, notice("error", "The runs cannot be read.", (error as Error).message));
    }
  };

  const visible = (): Overview[] => {
    const { params } = current();
    const text = (params.get("text") ?? "").toLowerCase();
    const status = params.get("status") ?? "";
    const sort = params.get("sort") ?? "-updated";
    const column = COLUMNS.find((c) => c.key === sort.replace("-", ""));
    const runs = (list?.runs ?? []).filter(
      (r) =>
        (!status || r.status === status) &&
        [r.id, r.task, r.algorithm, r.model, r.study].join(" ").toLowerCase().includes(text),
    );
    if (!column) return runs;
    const sign = sort.startsWith("-") ? -1 : 1;
    return runs.sort((a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      return sign * (x < y ? -1 : x > y ? 1 : a.id.localeCompare(b.id));
    });
  };

  const table = (): Table => ({
    columns: COLUMNS.map((c) => c.title),
    rows: visible().map((run) => COLUMNS.map((c) => {
      const value = c.value(run);
      return value === -1 ? null : value;
    })),
  });

  const render = (): void => {
    if (!list) return;
    const { params } = current();
    const picked = new Set(selected());
    const runs = visible();
    const sort = params.get("sort") ?? "-updated";
    if (!list.runs.length) {
      replace(body, h("h1", {}, "Runs"), notice(
        "empty", "There is no run here yet.",
        `Start one with \`glasshouse train\` or \`make demo\`; it appears here when it begins. Folders: ${list.roots.join(", ")}`,
      ));
      return;
    }
    const search = h("input", {
      type: "search", value: params.get("text") ?? "", placeholder: "name, task, model…", "aria-label": "Filter runs", id: "run-filter",
      oninput: () => setParams({ text: search.value }),
    });
    const hadFocus = document.activeElement?.id === "run-filter";
    const caret = (document.activeElement as HTMLInputElement | null)?.selectionStart ?? null;
    replace(
      body,
      h("div", { class: "title-row" }, h("h1", {}, "Runs"), h("p", { class: "muted" }, `${plural(list.runs.length, "run")} in ${list.roots.join(", ")}`)),
      h(
        "div",
        { class: "toolbar" },
        h("label", { class: "field grow" }, h("span", {}, "Filter"), search),
        select("Status", params.get("status") ?? "", [["", "all"], ...(["running", "finished", "interrupted", "failed", "empty"] as const).map((k): [string, string] => [k, k])], (status) => setParams({ status })),
        h("a", {
          class: `button primary${picked.size < 2 ? " disabled" : ""}`, "aria-disabled": String(picked.size < 2),
          href: picked.size < 2 ? null : link("compare", "", "", { runs: [...picked].join("|") }),
        }, picked.size < 2 ? "Pick runs to compare" : `Compare ${picked.size} runs`),
        tableButtons("runs", table),
      ),
      list.studies.length
        ? h("p", { class: "studies" }, "Studies: ", list.studies.map((id) => h("a", { href: link("study", id) }, id)))
        : null,
      tableRegion("Runs", [h("th", { scope: "col" }, h("span", { class: "offscreen" }, "Compare")), ...COLUMNS.map((c) => heading(c, sort))], runs.map((run) => h("tr", {},
        h("td", {}, h("input", {
          type: "checkbox", checked: picked.has(run.id), "aria-label": `Compare ${run.id}`,
          onchange: () => {
            if (picked.has(run.id)) picked.delete(run.id);
            else picked.add(run.id);
            setParams({ pick: [...picked].join("|") });
          },
        })),
        COLUMNS.map((c) => h("td", { "data-label": c.title, class: c.numeric ? "numeric" : "" }, c.cell(run),
          c.key === "id" && run.damage.length ? h("small", { class: "warn", title: run.damage.join("\n") }, " damaged") : null)))), "runs"),
      runs.length ? null : notice("empty", "No run matches the filter.", "Change or clear it."),
    );
    if (hadFocus) {
      search.focus();
      search.setSelectionRange(caret, caret);
    }
  };

  void load();
  const stop = listen("", () => 0, { runs: () => void load() }, onlive);
  const clock = window.setInterval(() => { if (!document.hidden && list && document.activeElement?.id !== "run-filter") render(); }, 15_000);
  return { update: render, destroy: () => { stop(); window.clearInterval(clock); } };
}
