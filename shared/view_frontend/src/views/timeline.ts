// How a run spends its time: phases of each step per process, faults and respawns.

import { scaleLinear } from "d3-scale";
import { get } from "../api";
import { h, notice, replace, s } from "../dom";
import { figureMenu, tableButtons } from "../export";
import { duration, number } from "../format";
import { current, link, setParams } from "../router";
import type { RunStore } from "../run_store";
import type { Timeline } from "../types";
import type { View } from "../view";

const PHASES = ["sample", "generate", "reward", "learn", "sync", "log", "respawn"];
const TROUBLE = new Set(["fault", "respawn", "failed", "interrupted", "stopped", "damaged", "resume", "warning"]);
const [LANE, TOP, LEFT] = [46, 22, 110];

export function timelineView(root: HTMLElement, store: RunStore): View {
  let asked = "";
  const load = async (isLive = false): Promise<void> => {
    const { params } = current();
    const query = { first: params.get("first"), last: params.get("last") };
    const key = JSON.stringify(query);
    if (key === asked && !isLive) return;
    asked = key;
    try {
      const answer = await get<Timeline>("timeline", { run: store.id, ...query });
      const focused = root.contains(document.activeElement) && document.activeElement instanceof HTMLInputElement ? document.activeElement.id : "";
      if (isLive && focused) return; // somebody is typing
      draw(answer);
      if (focused) document.getElementById(focused)?.focus();
    } catch (error) {
      replace(root, notice("error", "The timeline cannot be read.", (error as Error).message));
    }
  };

  const draw = (answer: Timeline): void => {
    const origin = Math.min(...answer.spans.map((x) => x.start));
    const data: Timeline = {
      ...answer,
      spans: answer.spans.map((x) => ({ ...x, start: x.start - origin, end: x.end - origin })),
      events: answer.events.map((e) => ({ ...e, time: e.time - origin })),
    };
    const first = h("input", { id: "first-step", type: "number", min: 1, value: data.first, onchange: () => setParams({ first: first.value, last: Math.max(Number(first.value), data.last) }) });
    const last = h("input", { id: "last-step", type: "number", min: 1, value: data.last, onchange: () => setParams({ last: last.value }) });
    const size = Math.max(1, data.last - data.first + 1);
    const toolbar = h("div", { class: "toolbar" },
      h("label", { class: "field" }, h("span", {}, "From step"), first), h("label", { class: "field" }, h("span", {}, "To step"), last),
      h("button", { type: "button", disabled: data.first <= 1, onclick: () => setParams({ first: Math.max(1, data.first - size), last: Math.max(size, data.last - size) }) }, "Earlier"),
      h("button", { type: "button", disabled: data.last >= data.step, onclick: () => setParams({ first: data.first + size, last: data.last + size }) }, "Later"),
      h("button", { type: "button", onclick: () => setParams({ first: null, last: null }) }, "Newest"));
    if (!data.spans.length) {
      replace(root, toolbar, notice("empty", "These steps have no times.", data.step ? `The run is at step ${data.step}.` : "No step is logged yet."));
      return;
    }
    const svg = s("svg", { class: "chart timeline", role: "img", height: TOP + data.lanes.length * LANE + 34 });
    const end = Math.max(...data.spans.map((x) => x.end));
    const shares = PHASES.map((phase) => ({ phase, seconds: data.spans.filter((x) => x.phase === phase).reduce((sum, x) => sum + x.end - x.start, 0) })).filter((x) => x.seconds);
    svg.setAttribute("aria-label", `Timeline of steps ${data.first} to ${data.last}, ${number(end, 1)} seconds. ${shares.map((x) => `${x.phase} ${number(x.seconds, 1)} s`).join(", ")}`);
    const render = (): void => {
      const width = Math.max(320, Math.floor(svg.getBoundingClientRect().width));
      const x = scaleLinear([0, end], [LEFT, width - 10]);
      const bottom = TOP + data.lanes.length * LANE;
      svg.setAttribute("viewBox", `0 0 ${width} ${bottom + 34}`);
      replace(svg,
        s("g", { class: "axes" }, x.ticks(Math.max(3, Math.floor(width / 110))).map((t) => [s("line", { class: "grid", x1: x(t), x2: x(t), y1: TOP - 6, y2: bottom }), s("text", { x: x(t), y: bottom + 16, "text-anchor": "middle" }, `${t} s`)]).flat(),
          data.lanes.map((lane, i) => s("text", { x: LEFT - 10, y: TOP + i * LANE + LANE / 2, dy: "0.1em", "text-anchor": "end" }, lane)),
          s("text", { class: "axis-label", x: width - 10, y: bottom + 31, "text-anchor": "end" }, "seconds since the first step shown")),
        data.spans.map((span) => {
          const wide = x(span.end) - x(span.start);
          return s("g", { class: `span c${PHASES.indexOf(span.phase)}` },
            s("rect", { x: x(span.start), width: Math.max(0.7, wide - 0.4), y: TOP + data.lanes.indexOf(span.lane) * LANE + 4, height: LANE - 14, rx: 1.5 }, s("title", {}, `step ${span.step}, ${span.phase}: ${number(span.end - span.start)} s`)),
            wide > 60 && span.phase !== "log" ? s("text", { x: x(span.start) + wide / 2, y: TOP + data.lanes.indexOf(span.lane) * LANE + LANE / 2, dy: "0.05em", "text-anchor": "middle" }, span.phase) : null);
        }),
        data.events.filter((e) => e.time >= 0 && e.time <= end).map((e) => s("g", { class: `mark ${TROUBLE.has(e.kind) ? "fault" : "save"}` },
          s("line", { x1: x(e.time), x2: x(e.time), y1: TOP - 8, y2: bottom }), s("text", { x: x(e.time), y: TOP - 10, "text-anchor": "middle" }, TROUBLE.has(e.kind) ? "✕" : e.kind === "save" ? "▲" : "◇"),
          s("title", {}, `${e.kind}${e.process ? `, ${e.process}` : ""}: ${e.text}`))));
    };
    new ResizeObserver(render).observe(svg);
    const steps = [...new Set(data.spans.map((x) => x.step))];
    replace(root, h("h2", { class: "offscreen" }, "How it runs"), toolbar,
      h("figure", { class: "panel wide" },
        h("figcaption", {}, h("h3", {}, "Timeline", h("span", { class: "unit" }, `steps ${steps[0]} to ${steps.at(-1)}, ${duration(end)}`)), figureMenu("timeline", () => svg, () => ({ columns: ["step", "phase", "process", "start s", "end s"], rows: data.spans.map((x) => [x.step, x.phase, x.lane, x.start, x.end]) }))),
        h("div", { class: "legend" }, shares.map((x) => h("span", { class: `key c${PHASES.indexOf(x.phase)}` }, h("i", { "aria-hidden": "true" }), x.phase, h("b", {}, `${number(x.seconds, 1)} s`), data.lanes.length === 1 ? h("span", { class: "range" }, `${Math.round((100 * x.seconds) / end)} %`) : null))),
        svg),
      h("p", { class: "hint" }, "Gaps are evaluations, checkpoints (▲) and work outside the phases. ✕ marks a fault, respawn, resume or warning; ◇ an evaluation."),
      eventList(data));
  };

  const eventList = (data: Timeline): HTMLElement => {
    const trouble = data.events.filter((e) => TROUBLE.has(e.kind));
    if (!trouble.length) return h("p", { class: "muted" }, "No fault, respawn or warning in these steps. ", h("a", { href: link("run", store.id) }, "All events are below the curves."));
    const columns = ["seconds", "step", "event", "process", "text"];
    return h("div", {}, h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Faults and respawns" }, h("table", {}, h("thead", {}, h("tr", {}, columns.map((t, i) => h("th", { scope: "col", class: i < 2 ? "numeric" : "" }, t)))),
      h("tbody", {}, trouble.map((e) => h("tr", {}, h("td", { class: "numeric" }, number(e.time, 1)), h("td", { class: "numeric" }, e.step ?? ""), h("td", {}, e.kind), h("td", {}, e.process), h("td", {}, e.text)))))),
      h("div", { class: "toolbar slim" }, tableButtons("faults", () => ({ columns, rows: trouble.map((e) => [e.time, e.step, e.kind, e.process, e.text]) }))));
  };

  replace(root, notice("loading", "Reading the times…"));
  void load();
  const unsubscribe = store.subscribe(() => { if (!current().params.get("first")) void load(true); });
  return { update: () => void load(), destroy: unsubscribe };
}
