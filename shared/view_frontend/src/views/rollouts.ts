// Rollouts: filters and search on the server, a list, and one rollout or group in full.

import { get, setLabel, snapshot, type RunStore } from "../api";
import { announce, h, notice, replace, select, type View } from "../dom";
import { count, label, number, plural, visible } from "../format";
import { labelChip, rolloutCard, verdictMark } from "../rollout_card";
import { current, setParams } from "../router";
import type { Rollout, RolloutPage } from "../types";

/** Filters with a few values, of which the server counts each. */
const CHOICES: [string, string][] = [
  ["split", "Split"], ["checkpoint", "Checkpoint"], ["correct", "Graded"], ["label", "Label"], ["rule", "Extraction rule"], ["finish_reason", "Finish reason"], ["arm", "Arm"],
  ["flagged", "Monitor verdict"],
];
const NUMBERS: [string, string][] = [["first", "From step"], ["last", "To step"], ["min_reward", "Smallest reward"], ["max_reward", "Largest reward"]];
const ORDERS: [string, string][] = [
  ["", "newest step first"], ["step", "oldest step first"], ["reward", "lowest reward first"], ["-reward", "highest reward first"],
  ["length", "shortest first"], ["-length", "longest first"],
];
const FILTERS = [...CHOICES, ...NUMBERS].map(([name]) => name).concat("group", "key", "text", "sort");
const PAGE = 50;
const LABELS: [string, number | null, string][] = [["Label 1", 1, "Label: shows the behaviour (key 1)"], ["Label 0", 0, "Label: does not show it (key 0)"], ["No label", null, "Remove the label (key Backspace)"]];

export function rolloutsView(root: HTMLElement, store: RunStore): View {
  let page: RolloutPage | null = null;
  let asked = "";
  let shown = "";
  let request: AbortController | null = null;
  let retry = 0;
  let typing = 0;
  /** Labelled rollouts with what they were before. */
  const undo: [string, number | null][] = [];
  const filters = h("div", { class: "filters" });
  const summary = h("p", { class: "summary", role: "status" });
  const list = h("ol", { class: "rollout-list", "aria-label": "Rollouts", tabindex: 0 });
  const pager = h("div", { class: "toolbar slim" });
  const detail = h("div", { class: "rollout-detail" });
  const search = h("input", { type: "search", id: "rollout-search", placeholder: "text in question or completion", "aria-label": "Search text", oninput: () => {
    window.clearTimeout(typing);
    typing = window.setTimeout(() => setFilter("text", search.value), 120);
  } });
  replace(root, h("h2", { class: "offscreen" }, "Rollouts"), h("div", { class: "rollouts-layout" },
    h("aside", { class: "filter-column", "aria-label": "Filters" }, filters),
    h("div", { class: "list-column" }, h("label", { class: "field search" }, h("span", {}, "Search"), search, h("kbd", {}, "/")), summary, list, pager),
    detail));

  const setFilter = (name: string, value: string | null): void => setParams({ [name]: value, offset: null, ref: null });
  const clear = (): void => setParams({ ...Object.fromEntries(FILTERS.map((name) => [name, null])), offset: null });
  const offset = (): number => Number(current().params.get("offset") ?? 0);
  const chosenRef = (): string => current().params.get("ref") ?? page?.rows[0]?.ref ?? "";

  const load = async (force = false): Promise<void> => {
    const { params } = current();
    const query = Object.fromEntries([...FILTERS, "offset"].map((name) => [name, params.get(name)]));
    const key = JSON.stringify(query);
    if (key === asked && !force) return;
    asked = key;
    request?.abort();
    request = new AbortController();
    list.setAttribute("aria-busy", "true");
    if (!page) replace(list, h("li", {}, notice("loading", "Reading the rollouts…")));
    try {
      page = await get<RolloutPage>("rollouts", { run: store.id, ...query, limit: PAGE }, request.signal);
      list.removeAttribute("aria-busy");
      render();
    } catch (error) {
      if ((error as Error).name === "AbortError") return;
      page = null;
      list.removeAttribute("aria-busy");
      replace(list, h("li", {}, notice("error", "The rollouts cannot be read.", (error as Error).message)));
    }
  };

  const render = (): void => {
    if (!page) return;
    const isIndexing = page.indexed_frames < page.frames;
    if (document.activeElement !== search) search.value = current().params.get("text") ?? "";
    drawFilters(page);
    replace(summary, h("b", {}, count(page.matching)), ` of ${plural(page.total, "rollout")}`, isIndexing ? h("span", { class: "muted" }, ` · indexed ${page.indexed_frames} of ${page.frames} steps…`) : null,
      page.note ? h("span", { class: "muted" }, ` · ${page.note}`) : null,
      page.damage.length ? h("span", { class: "warn", title: page.damage.join("\n") }, ` · ${plural(page.damage.length, "step")} cannot be read`) : null);
    window.clearTimeout(retry);
    if (isIndexing) retry = window.setTimeout(() => void load(true), 700);
    replace(list, page.rows.map((row) => h("li", {}, listItem(row))));
    if (!page.rows.length) {
      replace(list, h("li", {}, isIndexing ? notice("empty", "Nothing found so far.", "The log is still being indexed.")
        : page.total ? notice("empty", "No rollout matches these filters.", h("button", { type: "button", onclick: clear }, "Clear the filters"))
        : notice("empty", "There are no rollouts.", "The log of the run was deleted (a study deletes them unless it runs with --keep), or no step is done yet.")));
    }
    const turn = (text: string, to: number, isPossible: boolean): HTMLElement => h("button", { type: "button", disabled: !isPossible, onclick: () => setParams({ offset: to || null, ref: null }) }, text);
    const start = offset();
    replace(pager, turn("Previous", Math.max(0, start - PAGE), start > 0),
      h("span", { class: "muted" }, page.matching ? `${count(start + 1)}–${count(Math.min(page.matching, start + PAGE))}` : ""),
      turn("Next", start + PAGE, start + PAGE < page.matching));
    void showDetail();
  };

  const drawFilters = ({ facets }: RolloutPage): void => {
    if (filters.contains(document.activeElement) && document.activeElement instanceof HTMLInputElement) return;
    const value = (name: string): string => current().params.get(name) ?? "";
    const names: Record<string, Record<string, string>> = { correct: { yes: "correct", no: "wrong" }, label: { yes: "1", no: "0" } };
    const text = (name: string, key: string): string => names[name]?.[key] ?? (key.startsWith("!") ? `not ${label(key.slice(1))}` : label(key));
    const choice = ([name, title]: [string, string]): HTMLElement | null => {
      const counts = { ...(value(name) ? { [value(name)]: 0 } : {}), ...facets[name] };
      const options = Object.entries(counts).map(([key, n]): [string, string] => [key, `${text(name, key)} (${count(n)})`]);
      return options.length ? select(title, value(name), [["", "all"], ...options], (v) => setFilter(name, v)) : null;
    };
    const limit = ([name, title]: [string, string]): HTMLElement => {
      const input = h("input", { type: "number", step: "any", value: value(name), onchange: () => setFilter(name, input.value) });
      return h("label", { class: "field" }, h("span", {}, title), input);
    };
    replace(filters,
      h("div", { class: "pair" }, NUMBERS.map(limit)), CHOICES.map(choice),
      select("Order", value("sort"), store.run?.status === "file" ? [["", "as in the file"], ...ORDERS.slice(1)] : ORDERS, (v) => setFilter("sort", v)),
      value("key") ? h("p", { class: "muted" }, "Problem ", h("code", {}, value("key"))) : null,
      h("button", { type: "button", onclick: clear }, "Clear the filters"));
  };

  const listItem = (row: Rollout): HTMLElement => {
    const flagged = (row.facets["flagged"] ?? []).filter((name) => !name.startsWith("!"));
    const isSelected = row.ref === chosenRef();
    return h("button", { type: "button", class: `item${isSelected ? " selected" : ""}`, "aria-current": isSelected ? "true" : null, "data-ref": row.ref, onclick: () => setParams({ ref: row.ref }) },
      h("span", { class: "item-head" },
        row.correct === null ? null : verdictMark(row.correct), row.reward === null ? null : h("b", {}, number(row.reward, 2)),
        h("span", { class: "muted" }, `${/^\d*$/.test(row.checkpoint) ? `step ${row.step}` : visible(row.checkpoint)} · group ${row.group}.${row.sample}`),
        row.split === "train" || !row.split ? null : h("span", { class: "chip" }, row.split),
        flagged.length ? h("span", { class: "flag on", title: flagged.join(", ") }, "⚑") : null, labelChip(row)),
      h("span", { class: "preview", dir: "auto" }, visible(row.text.replaceAll("\n", " ↵ ")) || "(empty)"));
  };

  const showDetail = async (): Promise<void> => {
    const { params } = current();
    const ref = chosenRef();
    const isGroup = params.get("view") === "group";
    const isSource = params.get("source") === "1";
    const key = [ref, isGroup, isSource].join(" ");
    if (key === shown) return;
    shown = key;
    list.querySelectorAll<HTMLElement>(".item").forEach((item) => {
      item.classList.toggle("selected", item.dataset["ref"] === ref);
      item.ariaCurrent = item.dataset["ref"] === ref ? "true" : null;
    });
    if (!ref) return replace(detail, notice("empty", "No rollout is selected."));
    try {
      const ask = async (query: Record<string, string | number>): Promise<Rollout[]> => (await get<RolloutPage>("rollouts", { run: store.id, full: 1, ...query })).rows;
      const [rollout] = await ask({ ref });
      if (!rollout) throw new Error("It may have been removed by a resume, or this file does not hold that rollout.");
      const { split, step, group } = rollout;
      const rows = isGroup ? await ask({ split, first: step, last: step, group, limit: 200 }) : [rollout];
      if (shown !== key) return;
      replace(detail,
        h("div", { class: "toolbar slim" },
          h("button", { type: "button", "aria-pressed": String(isGroup), onclick: () => setParams({ view: isGroup ? null : "group", ref }) }, isGroup ? "One rollout" : "Group side by side"),
          h("button", { type: "button", "aria-pressed": String(isSource), onclick: () => setParams({ source: isSource ? null : 1, ref }) }, isSource ? "Rendered" : "Source"),
          isGroup || snapshot ? null : LABELS.map(([name, value, title]) => h("button", { type: "button", title, onclick: () => void mark(value) }, name)),
          h("span", { class: "muted" }, isGroup ? groupText(rows) : "Press ? for the keys.")),
        isGroup ? h("p", { class: "question", dir: "auto" }, h("span", { class: "muted" }, "Question "), visible(rollout.question)) : null,
        isGroup
          ? h("div", { class: "group", tabindex: 0, role: "region", "aria-label": "Group side by side" }, rows.map((r) => {
              const card = rolloutCard(r, store.id, true);
              card.classList.toggle("selected", r.ref === ref);
              return card;
            }))
          : rolloutCard(rollout, store.id));
    } catch (error) {
      replace(detail, notice("error", "This rollout cannot be read.", (error as Error).message));
    }
  };

  /** Label the rollout that is shown; the server writes it at once. `label` undefined takes the last change back. */
  const mark = async (label: number | null | undefined): Promise<void> => {
    const [ref, value] = label === undefined ? (undo.pop() ?? ["", null]) : [chosenRef(), label];
    const before = page?.rows.find((row) => row.ref === ref)?.facets["label"]?.[0];
    if (!ref || snapshot) return announce(snapshot ? "A report cannot be labelled." : "There is nothing to undo.");
    try {
      await setLabel(store.id, ref, value);
      if (label !== undefined) undo.push([ref, before === "yes" ? 1 : before === "no" ? 0 : null]);
      shown = "";
      await load(true);
      if (label === undefined) setParams({ ref });
      announce(value === null ? "The label is removed." : `Labelled ${value}.`);
    } catch (error) {
      replace(detail, notice("error", "The label was not written.", (error as Error).message));
    }
  };

  const move = (delta: number, byGroup: boolean): void => {
    const rows = page?.rows ?? [];
    const start = Math.max(0, rows.findIndex((r) => r.ref === chosenRef()));
    const groupOf = (r: Rollout): string => `${r.split} ${r.step} ${r.group}`;
    let at = start + delta;
    if (byGroup) while (rows[at] && groupOf(rows[at]!) === groupOf(rows[start]!)) at += delta;
    if (!rows[at]) {
      const next = offset() + delta * PAGE;
      if (page && next >= 0 && next < page.matching) setParams({ offset: next || null, ref: null });
      return;
    }
    setParams({ ref: rows[at]!.ref });
    list.querySelector(`[data-ref="${CSS.escape(rows[at]!.ref)}"]`)?.scrollIntoView({ block: "nearest" });
    announce(`Rollout ${at + 1} of ${rows.length}`);
  };

  const escape = (field: HTMLElement | null): void => {
    const { params } = current();
    if (field === search && search.value) setFilter("text", (search.value = ""));
    if (field) field.blur();
    else if (params.get("view")) setParams({ view: null });
    else if (params.get("ref")) setParams({ ref: null });
  };

  const onkey = (event: KeyboardEvent): boolean => {
    const field = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement ? event.target : null;
    const actions: Record<string, () => void> = {
      j: () => move(1, false), k: () => move(-1, false), n: () => move(1, true), p: () => move(-1, true), "/": () => search.select(),
      "1": () => void mark(1), "0": () => void mark(0), Backspace: () => void mark(null), u: () => void mark(undefined),
      m: () => setParams({ source: current().params.get("source") ? null : 1, ref: chosenRef() }),
      g: () => setParams({ view: current().params.get("view") ? null : "group", ref: chosenRef() }), Escape: () => escape(field),
    };
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey || (field && event.key !== "Escape")) return false;
    action();
    return true;
  };

  let lastStep = store.run?.step;
  const unsubscribe = store.subscribe(() => {
    const step = store.run?.step;
    if (lastStep !== undefined && step !== lastStep) void load(true);
    lastStep = step;
  });
  void load();
  return { update: () => { void load().then(render); }, destroy: () => { unsubscribe(); request?.abort(); window.clearTimeout(retry); }, onkey };
}

function groupText(rows: Rollout[]): string {
  const mean = rows.reduce((sum, r) => sum + (r.reward ?? 0), 0) / Math.max(1, rows.length);
  return `${plural(rows.length, "sample")} of group ${rows[0]?.group}, step ${rows[0]?.step}; mean reward ${number(mean)}`;
}
