// A run's curves: aligned panels over one step axis.

import { Cursor, LineChart } from "../chart";
import { h, notice, replace, select, tableRegion } from "../dom";
import { tableButtons, type Table } from "../export";
import { plural } from "../format";
import { runPanels } from "../panels";
import { current, link, setParams } from "../router";
import type { RunStore } from "../run_store";
import type { Run } from "../types";
import type { View } from "../view";

const GLYPHS: Record<string, string> = { save: "▲", evaluation: "◇", resume: "↻" };
const UNNAMED_MARKS = new Set(["start", "end"]);

export function curvesView(root: HTMLElement, store: RunStore): View {
  const cursor = new Cursor();
  const charts = new Map<string, LineChart>();
  const toolbar = h("div", { class: "toolbar" });
  const grid = h("div", { class: "panels" });
  const facts = h("div");
  replace(root, h("h2", { class: "offscreen" }, "Curves"), toolbar, grid, facts);

  const range = (run: Run): [number, number, boolean] => {
    const [from, to] = (current().params.get("zoom") ?? "").split("..").map(Number);
    const end = Math.max(run.step, 1);
    if (from !== undefined && to !== undefined && from < to) return [from, to, true];
    return [0, run.status === "running" ? end : Math.max(end, ...run.accuracy.flatMap((m) => m.points.map((p) => p.step))), false];
  };

  const readout = h("output", { class: "readout", "aria-live": "polite" });
  const slider = h("input", { type: "range", min: 0, step: 1, "aria-label": "Step", oninput: () => cursor.set(Number(slider.value)) });
  const open = h("a", { class: "button primary" }, "Rollouts of this step");
  const showStep = (): void => {
    const run = store.run;
    if (!run) return;
    const [from, to] = range(run);
    const step = cursor.x ?? Math.min(to, Math.max(from, run.step));
    const kinds = [...new Set(run.marks.filter((m) => m.step === step && !UNNAMED_MARKS.has(m.kind)).map((m) => m.kind))];
    const names = kinds.map((kind) => (kind === "save" ? "checkpoint" : kind)).join(", ");
    replace(readout, `step ${step}`, kinds.length ? h("span", { title: names, role: "img", "aria-label": names }, ` ${kinds.map((kind) => GLYPHS[kind] ?? "✕").join("")}`) : null);
    open.setAttribute("href", link("run", run.id, "rollouts", { first: step, last: step }));
    if (document.activeElement !== slider) slider.value = String(step);
  };
  cursor.subscribe(showStep);

  const render = (): void => {
    const run = store.run;
    if (!run) return;
    const window = Number(current().params.get("smooth") ?? 1);
    const [from, to, zoomed] = range(run);
    const specs = runPanels(run, from, to, window);
    if (!toolbar.childElementCount || toolbar.dataset["zoomed"] !== String(zoomed)) {
      toolbar.dataset["zoomed"] = String(zoomed);
      replace(
        toolbar,
        h("label", { class: "field grow step-slider" }, h("span", {}, "Step"), slider, readout),
        open,
        select("Smoothing", String(window), [["1", "none"], ["5", "5 steps"], ["10", "10 steps"], ["20", "20 steps"], ["50", "50 steps"], ["100", "100 steps"]], (value) => setParams({ smooth: value === "1" ? null : value })),
        zoomed ? h("button", { type: "button", onclick: () => setParams({ zoom: null }) }, "Show all steps") : h("span", { class: "hint" }, "Drag across a panel to zoom, click a step to read its rollouts."),
      );
    }
    slider.min = String(from);
    slider.max = String(to);
    showStep();
    if (!run.metrics.steps.length && !run.accuracy.length) {
      charts.forEach((chart) => chart.destroy());
      charts.clear();
      replace(grid, notice("empty", "No step is logged yet.", run.status === "running" ? "The curves begin with the first step." : `Resume the run with: ${run.commands["resume"]}`));
    } else {
      const wanted = new Set(specs.map((spec) => spec.title));
      for (const [title, chart] of charts) {
        if (!wanted.has(title)) {
          chart.destroy();
          chart.element.remove();
          charts.delete(title);
        }
      }
      if (grid.querySelector(".notice")) grid.replaceChildren();
      for (const spec of specs) {
        const chart = charts.get(spec.title);
        if (chart) chart.update(spec);
        else {
          const made = new LineChart(spec, cursor, {
            onpick: (step) => { location.hash = link("run", run.id, "rollouts", { first: step, last: step }); },
            onzoom: (a, b) => setParams({ zoom: `${a}..${b}` }, true),
          });
          charts.set(spec.title, made);
          grid.append(made.element);
        }
      }
    }
    if (!facts.querySelector("details[open]")) {
      replace(facts, marksLegend(run),
        h("div", { class: "toolbar slim" }, h("span", { class: "muted" }, "All curves as a table:"), tableButtons(`${run.id} metrics`, () => metricsTable(store.run!))),
        eventsTable(run));
    }
  };

  const unsubscribe = store.subscribe(render);
  render();
  return {
    update: render,
    destroy: () => {
      unsubscribe();
      charts.forEach((chart) => chart.destroy());
    },
  };
}

function metricsTable(run: Run): Table {
  const names = Object.keys(run.metrics.columns);
  return { columns: ["step", ...names], rows: run.metrics.steps.map((step, i) => [step, ...names.map((name) => run.metrics.columns[name]![i])]) };
}

function marksLegend(run: Run): HTMLElement {
  const counts = new Map<string, number>();
  run.marks.forEach((mark) => counts.set(mark.kind, (counts.get(mark.kind) ?? 0) + 1));
  const shown = [...counts].filter(([kind]) => kind !== "start" && kind !== "end");
  return h("p", { class: "hint" }, "Marks: ▲ checkpoint, ◇ evaluation, ↻ resume, ✕ fault, warning or interruption. ",
    shown.map(([kind, n]) => `${kind} ${n}`).join(", "), shown.length ? ". " : "", "Vertical lines at points of evaluations are their intervals.",
    run.logged_steps && run.logged_steps > run.metrics.steps.length ? ` The curves show ${plural(run.metrics.steps.length, "step")} of ${run.logged_steps}.` : "");
}

function eventsTable(run: Run): HTMLElement {
  const columns = ["step", "time", "event", "text"];
  return h("details", { class: "fold" },
    h("summary", {}, `Events (${plural(run.marks.length, "event")}, ${plural(run.checkpoints.length, "checkpoint")} kept)`),
    tableRegion("Events", columns.map((t, i) => h("th", { scope: "col", class: i ? "" : "numeric" }, t)),
      run.marks.slice(-500).reverse().map((m) => h("tr", {}, h("td", { class: "numeric" }, m.step), h("td", {}, m.time.replace("T", " ").slice(0, 19)), h("td", {}, m.kind), h("td", {}, m.text)))),
    h("div", { class: "toolbar slim" }, tableButtons(`${run.id} events`, () => ({ columns, rows: run.marks.map((m) => [m.step, m.time, m.kind, m.text]) }))),
  );
}
