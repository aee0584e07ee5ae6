// A run's curves: aligned panels over one step axis.

import type { RunStore } from "../api";
import { ChartGrid, Cursor } from "../chart";
import { h, notice, replace, type View } from "../dom";
import { plural } from "../format";
import { runPanels } from "../panels";
import { current, link, setParams } from "../router";
import type { Run } from "../types";
import { foldedTable, smoothing } from "./parts";

const MAX_EVENTS = 500;

export function curvesView(root: HTMLElement, store: RunStore): View {
  const cursor = new Cursor();
  const grid = new ChartGrid(cursor, {
    onpick: (step) => { location.hash = link("run", store.id, "rollouts", { first: step, last: step }); },
    onzoom: (a, b) => setParams({ zoom: `${a}..${b}` }, true),
  });
  const empty = h("div");
  const facts = h("div");
  const readout = h("output", { class: "readout", "aria-live": "polite" });
  const slider = h("input", { type: "range", min: 0, step: 1, "aria-label": "Step", oninput: () => cursor.set(Number(slider.value)) });
  const open = h("a", { class: "button primary" }, "Rollouts of this step");
  const options = h("div", { class: "toolbar slim" });
  replace(root, h("h2", { class: "offscreen" }, "Curves"),
    h("div", { class: "toolbar" }, h("label", { class: "field grow step-slider" }, h("span", {}, "Step"), slider, readout), open, options), empty, grid.element, facts);

  const range = (run: Run): [number, number, boolean] => {
    const [from, to] = (current().params.get("zoom") ?? "").split("..").map(Number);
    if (from !== undefined && to !== undefined && from < to) return [from, to, true];
    return [0, Math.max(run.step, 1, ...Object.values(run.measures).flatMap((m) => m.points.map((p) => p.step))), false];
  };

  const showStep = (): void => {
    const run = store.run;
    if (!run) return;
    const [from, to] = range(run);
    const step = cursor.x ?? Math.min(to, Math.max(from, run.step));
    readout.textContent = `step ${step}`;
    open.setAttribute("href", link("run", run.id, "rollouts", { first: step, last: step }));
    if (document.activeElement !== slider) slider.value = String(step);
  };
  cursor.subscribe(showStep);

  const render = (): void => {
    const run = store.run;
    if (!run) return;
    const window = Number(current().params.get("smooth") ?? 1);
    const [from, to, isZoomed] = range(run);
    if (!options.contains(document.activeElement)) {
      replace(options, smoothing(window), isZoomed
        ? h("button", { type: "button", onclick: () => setParams({ zoom: null }) }, "Show all steps")
        : h("span", { class: "hint" }, "Drag across a panel to zoom, click a step to read its rollouts."));
    }
    slider.min = String(from);
    slider.max = String(to);
    showStep();
    const hasSteps = run.metrics.steps.length || Object.keys(run.measures).length;
    grid.show(hasSteps ? runPanels(run, from, to, window) : []);
    replace(empty, hasSteps ? null : notice("empty", "No step is logged yet.", run.status === "running" ? "The curves begin with the first step." : `Resume the run with: ${run.commands["resume"]}`));
    if (!facts.querySelector("details[open]")) replace(facts, marksLegend(run), eventsTable(run));
  };

  const unsubscribe = store.subscribe(render);
  render();
  return { update: render, destroy: () => { unsubscribe(); grid.destroy(); } };
}

function marksLegend(run: Run): HTMLElement {
  const { steps } = run.metrics;
  return h("p", { class: "hint" }, "Marks: ▲ checkpoint, ◇ evaluation, ↻ resume, ✕ fault, warning or interruption. Vertical lines at points of evaluations are their intervals.",
    run.logged_steps && run.logged_steps > steps.length ? ` The curves show ${plural(steps.length, "step")} of ${run.logged_steps}.` : "");
}

function eventsTable(run: Run): HTMLElement {
  return foldedTable(`Events (${plural(run.marks.length, "event")}, ${plural(run.checkpoints.length, "checkpoint")} kept)`, ["event", "step", "time"],
    run.marks.slice(-MAX_EVENTS).reverse().map((m) => [[m.kind, m.text], m.step, m.time.replace("T", " ").slice(0, 19)]));
}
