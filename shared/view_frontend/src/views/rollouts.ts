// Rollouts: filters and search on the server, a list, and one rollout or group in full.

import { get } from "../api";
import { h, notice, replace, select } from "../dom";
import { announce, tableButtons, type Table } from "../export";
import { count, label, number, plural, visible } from "../format";
import { Histogram } from "../histogram";
import { rolloutCard, verdictMark, type Part, type Tint } from "../rollout_card";
import { current, setParams } from "../router";
import type { RunStore } from "../run_store";
import type { Rollout, RolloutPage, RolloutRow } from "../types";
import type { View } from "../view";

const FILTERS = ["split", "first", "last", "correct", "rule", "finish_reason", "arm", "min_reward", "max_reward", "flagged", "disagree", "suspicious", "group", "key", "text", "sort"] as const;
const PAGE = 50;

export function rolloutsView(root: HTMLElement, store: RunStore, suspicions: Record<string, string>): View {
  let page: RolloutPage | null = null;
  let asked = "";
  let shown = "";
  let request: AbortController | null = null;
  let retry = 0;
  const filters = h("div", { class: "filters" });
  const summary = h("p", { class: "summary", role: "status" });
  const list = h("ol", { class: "rollout-list", "aria-label": "Rollouts", tabindex: 0 });
  const pager = h("div", { class: "toolbar slim" });
  const detail = h("div", { class: "rollout-detail" });
  const search = h("input", { type: "search", id: "rollout-search", placeholder: "text in question or completion", "aria-label": "Search text" });
  let typing = 0;
  search.addEventListener("input", () => {
    window.clearTimeout(typing);
    typing = window.setTimeout(() => setParams({ text: search.value, offset: null, ref: null }), 120);
  });
  const histogram = new Histogram((low, high) => setParams({ min_reward: low, max_reward: high, offset: null }));
  const listColumn = h("div", { class: "list-column" }, h("label", { class: "field search" }, h("span", {}, "Search"), search, h("kbd", {}, "/")), summary, list, pager);
  replace(root, h("h2", { class: "offscreen" }, "Rollouts"), h("div", { class: "rollouts-layout" }, h("aside", { class: "filter-column", "aria-label": "Filters" }, histogram.element, filters), listColumn, detail));

  const query = (): Record<string, string> => {
    const { params } = current();
    const fields: Record<string, string> = {};
    for (const name of FILTERS) {
      const value = params.get(name);
      if (value) fields[name] = value;
    }
    return fields;
  };

  const load = async (force = false): Promise<void> => {
    const offset = Number(current().params.get("offset") ?? 0);
    const key = JSON.stringify([query(), offset]);
    if (key === asked && !force) return;
    asked = key;
    request?.abort();
    request = new AbortController();
    list.setAttribute("aria-busy", "true");
    if (!page) replace(list, h("li", {}, notice("loading", "Reading the rollouts…")));
    try {
      page = await get<RolloutPage>("rollouts", { run: store.id, ...query(), offset, limit: PAGE }, request.signal);
      list.removeAttribute("aria-busy");
      render();
    } catch (error) {
      if ((error as Error).name === "AbortError") return;
      page = null;
      list.removeAttribute("aria-busy");
      replace(list, h("li", {}, notice("error", "The rollouts cannot be read.", (error as Error).message)));
    }
  };

  const table = (): Table => ({
    columns: ["ref", "step", "split", "group", "sample", "correct", "reward", "advantage", "rule", "finish_reason", "length", "model_answer", "gold_answer", "flagged", "question", "text"],
    rows: (page?.rows ?? []).map((r) => [r.ref, r.step, r.split, r.group, r.sample, r.correct, r.reward, r.advantage, r.rule, r.finish_reason, r.length, r.model_answer, r.gold_answer, r.flagged.join(" "), r.question, r.text]),
  });

  const render = (): void => {
    if (!page) return;
    const { params } = current();
    const ref = params.get("ref") ?? page.rows[0]?.ref ?? "";
    if (document.activeElement !== search) search.value = params.get("text") ?? "";
    histogram.update(page.histogram, params.get("min_reward"), params.get("max_reward"));
    drawFilters(page);
    const indexing = page.indexed_frames < page.frames;
    replace(summary, h("b", {}, count(page.matching)), ` of ${plural(page.total, "rollout")}`, indexing ? h("span", { class: "muted" }, ` · indexed ${page.indexed_frames} of ${page.frames} steps…`) : null,
      page.note ? h("span", { class: "muted" }, ` · ${page.note}`) : null,
      page.damage.length ? h("span", { class: "warn", title: page.damage.join("\n") }, ` · ${plural(page.damage.length, "step")} cannot be read`) : null);
    if (indexing) {
      window.clearTimeout(retry);
      retry = window.setTimeout(() => void load(true), 700);
    }
    if (!page.rows.length) {
      replace(list, h("li", {}, page.total || indexing
        ? notice("empty", indexing ? "Nothing found so far." : "No rollout matches these filters.", indexing ? "The log is still being indexed." : h("button", { type: "button", onclick: clear }, "Clear the filters"))
        : notice("empty", "This run has no rollouts.", "Its log was deleted (a study deletes them unless it runs with --keep), or no step is done yet.")));
    } else {
      replace(list, page.rows.map((row) => h("li", {}, listItem(row, row.ref === ref))));
    }
    const offset = Number(params.get("offset") ?? 0);
    replace(pager,
      h("button", { type: "button", disabled: offset === 0, onclick: () => setParams({ offset: Math.max(0, offset - PAGE) || null, ref: null }) }, "Previous"),
      h("span", { class: "muted" }, page.matching ? `${count(offset + 1)}–${count(Math.min(page.matching, offset + PAGE))}` : ""),
      h("button", { type: "button", disabled: offset + PAGE >= page.matching, onclick: () => setParams({ offset: offset + PAGE, ref: null }) }, "Next"),
      tableButtons("rollouts", table, true),
    );
    void showDetail();
  };

  const clear = (): void => setParams({ ...Object.fromEntries(FILTERS.map((name) => [name, null])), offset: null });

  const drawFilters = (p: RolloutPage): void => {
    if (filters.contains(document.activeElement) && document.activeElement instanceof HTMLInputElement) return;
    const { params } = current();
    const value = (name: string): string => params.get(name) ?? "";
    const set = (name: string) => (v: string): void => setParams({ [name]: v, offset: null, ref: null });
    const options = (name: string, all = "all"): [string, string][] => {
      const counts = { ...(p.facets[name] ?? {}) };
      if (value(name) && !(value(name) in counts)) counts[value(name)] = 0;
      return [["", all], ...Object.entries(counts).map(([key, n]): [string, string] => [key, `${label(key)} (${count(n)})`])];
    };
    const step = (name: "first" | "last", text: string): HTMLElement => {
      const input = h("input", { type: "number", min: 0, value: value(name), onchange: () => set(name)(input.value) });
      return h("label", { class: "field" }, h("span", {}, text), input);
    };
    const flagOptions: [string, string][] = [["", "any verdict"], ...p.monitors.flatMap((m): [string, string][] => [
      [m, `flagged by ${label(m)} (${count(p.facets["flagged"]?.[m] ?? 0)})`],
      [`!${m}`, `passed by ${label(m)} (${count(p.facets["passed"]?.[m] ?? 0)})`],
    ])];
    replace(filters,
      h("div", { class: "pair" }, step("first", "From step"), step("last", "To step")),
      select("Split", value("split"), options("split"), set("split")),
      select("Graded", value("correct"), [["", "all"], ["yes", `correct (${count(p.facets["correct"]?.["yes"] ?? 0)})`], ["no", `wrong (${count(p.facets["correct"]?.["no"] ?? 0)})`]], set("correct")),
      select("Extraction rule", value("rule"), options("rule"), set("rule")),
      select("Finish reason", value("finish_reason"), options("finish_reason"), set("finish_reason")),
      Object.keys(p.facets["arm"] ?? {}).length || value("arm") ? select("Arm", value("arm"), options("arm"), set("arm")) : null,
      p.monitors.length ? select("Monitor verdict", value("flagged"), flagOptions, set("flagged")) : null,
      p.monitors.length > 1 ? check("Monitors disagree", value("disagree") === "1", (on) => setParams({ disagree: on ? "1" : null, offset: null, ref: null })) : null,
      select("Suspicious", value("suspicious"), [["", "all"], ["any", "any reason"], ...Object.entries(suspicions).map(([id, text]): [string, string] => [id, `${text} (${count(p.facets["suspicious"]?.[id] ?? 0)})`])], set("suspicious")),
      select("Order", value("sort") || "step", [["step", "by step"], ["-step", "newest step first"], ["reward", "lowest reward first"], ["-reward", "highest reward first"], ["length", "shortest first"], ["-length", "longest first"]], (v) => setParams({ sort: v === "step" ? null : v, offset: null, ref: null })),
      value("key") ? h("p", { class: "muted" }, "Problem ", h("code", {}, value("key"))) : null,
      h("button", { type: "button", onclick: clear }, "Clear the filters"),
    );
  };

  const listItem = (row: RolloutRow, isSelected: boolean): HTMLElement => {
    const item = h("button", { type: "button", class: `item${isSelected ? " selected" : ""}`, "aria-current": isSelected ? "true" : null, "data-ref": row.ref, onclick: () => setParams({ ref: row.ref }) },
      h("span", { class: "item-head" },
        verdictMark(row.correct), h("b", {}, number(row.reward, 2)), h("span", { class: "muted" }, `step ${row.step} · group ${row.group}.${row.sample}`),
        row.split === "train" ? null : h("span", { class: "chip" }, row.split),
        row.flagged.length ? h("span", { class: "flag on", title: row.flagged.join(", ") }, "⚑") : null,
        row.suspicions.length ? h("span", { class: "chip warn" }, label(row.suspicions[0]!)) : null),
      h("span", { class: "preview", dir: "auto" }, visible(row.text.replaceAll("\n", " ↵ ")) || "(empty)"));
    return item;
  };

  const showDetail = async (): Promise<void> => {
    const { params } = current();
    const ref = params.get("ref") ?? page?.rows[0]?.ref ?? "";
    const isGroup = params.get("view") === "group";
    const part = (params.get("part") ?? "both") as Part;
    const tint = (params.get("tint") ?? "none") as Tint;
    const key = [ref, isGroup, part, tint].join(" ");
    if (key === shown) return;
    shown = key;
    list.querySelectorAll(".item").forEach((item) => {
      const on = (item as HTMLElement).dataset["ref"] === ref;
      item.classList.toggle("selected", on);
      if (on) item.setAttribute("aria-current", "true");
      else item.removeAttribute("aria-current");
    });
    if (!ref) {
      replace(detail, notice("empty", "No rollout is selected."));
      return;
    }
    const options = { run: store.id, part, tint, onpart: (p: Part) => setParams({ part: p === "both" ? null : p }), ontint: (t: Tint) => setParams({ tint: t === "none" ? null : t }) };
    const toggle = h("button", { type: "button", "aria-pressed": String(isGroup), onclick: () => setParams({ view: isGroup ? null : "group", ref }) }, isGroup ? "One rollout" : "Group side by side");
    try {
      if (isGroup) {
        const group = await get<{ rows: Rollout[] }>("group", { run: store.id, ref });
        if (shown !== key) return;
        const rewards = group.rows.map((r) => r.reward ?? 0);
        const mean = rewards.reduce((a, b) => a + b, 0) / Math.max(1, rewards.length);
        replace(detail, h("div", { class: "toolbar slim" }, toggle, h("span", { class: "muted" }, `${plural(group.rows.length, "sample")} of group ${group.rows[0]?.group}, step ${group.rows[0]?.step}; mean reward ${number(mean)}`)),
          h("p", { class: "question", dir: "auto" }, h("span", { class: "muted" }, "Question "), visible(group.rows[0]?.question ?? "")),
          h("div", { class: "group", tabindex: 0, role: "region", "aria-label": "Group side by side" }, group.rows.map((r) => {
            const card = rolloutCard(r, { ...options, onpart: undefined as never, ontint: undefined as never, tint: "none", compact: true });
            card.classList.toggle("selected", r.ref === ref);
            return card;
          })));
      } else {
        const rollout = await get<Rollout>("rollout", { run: store.id, ref });
        if (shown !== key) return;
        replace(detail, h("div", { class: "toolbar slim" }, toggle, h("span", { class: "hint" }, h("kbd", {}, "j"), h("kbd", {}, "k"), " rollout ", h("kbd", {}, "n"), h("kbd", {}, "p"), " group ", h("kbd", {}, "/"), " search ", h("kbd", {}, "Esc"), " back")), rolloutCard(rollout, options));
      }
    } catch (error) {
      replace(detail, notice("error", "This rollout cannot be read.", (error as Error).message));
    }
  };

  const move = (delta: number, byGroup: boolean): void => {
    if (!page?.rows.length) return;
    const rows = page.rows;
    const ref = current().params.get("ref") ?? rows[0]!.ref;
    const start = Math.max(0, rows.findIndex((r) => r.ref === ref));
    const groupOf = (r: RolloutRow): string => `${r.split} ${r.step} ${r.group}`;
    let at = start + delta;
    if (byGroup) while (rows[at] && groupOf(rows[at]!) === groupOf(rows[start]!)) at += delta;
    if (!rows[at]) {
      const offset = Number(current().params.get("offset") ?? 0);
      if (delta > 0 && offset + PAGE < page.matching) setParams({ offset: offset + PAGE, ref: null });
      else if (delta < 0 && offset > 0) setParams({ offset: Math.max(0, offset - PAGE) || null, ref: null });
      return;
    }
    setParams({ ref: rows[at]!.ref });
    const item = list.querySelector<HTMLElement>(`[data-ref="${CSS.escape(rows[at]!.ref)}"]`);
    item?.scrollIntoView({ block: "nearest" });
    announce(`Rollout ${at + 1} of ${rows.length}`);
  };

  const onkey = (event: KeyboardEvent): boolean => {
    const inField = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (event.key === "Escape") {
      if (inField) {
        if (event.target === search && search.value) { search.value = ""; setParams({ text: null, offset: null, ref: null }); }
        (event.target as HTMLElement).blur();
      } else if (current().params.get("view")) setParams({ view: null });
      else if (current().params.get("ref")) setParams({ ref: null });
      return true;
    }
    if (inField || event.ctrlKey || event.metaKey || event.altKey) return false;
    const actions: Record<string, () => void> = {
      j: () => move(1, false), k: () => move(-1, false), n: () => move(1, true), p: () => move(-1, true),
      "/": () => { search.focus(); search.select(); }, g: () => setParams({ view: current().params.get("view") ? null : "group", ref: current().params.get("ref") ?? page?.rows[0]?.ref ?? null }),
    };
    const action = actions[event.key];
    if (!action) return false;
    action();
    return true;
  };

  let lastStep = store.run?.step;
  const unsubscribe = store.subscribe(() => {
    const step = store.run?.step;
    if (lastStep !== undefined && step !== lastStep) void load(true);
    lastStep = step;
  });
  search.value = current().params.get("text") ?? "";
  void load();
  return { update: () => { void load().then(() => { if (page) render(); }); }, destroy: () => { unsubscribe(); request?.abort(); window.clearTimeout(retry); }, onkey };
}

function check(text: string, value: boolean, onchange: (on: boolean) => void): HTMLElement {
  const box = h("input", { type: "checkbox", checked: value, onchange: () => onchange(box.checked) });
  return h("label", { class: "field check" }, box, h("span", {}, text));
}
