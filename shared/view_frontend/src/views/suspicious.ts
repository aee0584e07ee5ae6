// Rollouts that deserve a closer look, by reason.

import { get } from "../api";
import { h, notice, replace, show } from "../dom";
import { tableButtons, type Table } from "../export";
import { count, visible } from "../format";
import { link } from "../router";
import { verdictMark } from "../rollout_card";
import type { RunStore } from "../run_store";
import type { SuspiciousAnswer } from "../types";
import type { View } from "../view";

export function suspiciousView(root: HTMLElement, store: RunStore): View {
  let timer = 0;
  replace(root, notice("loading", "Looking for suspicious rollouts…"));
  const load = (): Promise<void> => show(root, get<SuspiciousAnswer>("suspicious", { run: store.id }), (answer) => {
    render(answer);
    if (answer.indexed_frames < answer.frames) timer = window.setTimeout(() => void load(), 1000);
  }, "The rollouts cannot be read.");
  const render = (answer: SuspiciousAnswer): void => {
    const found = answer.groups.filter((g) => g.count);
    replace(root,
      h("p", { class: "muted" }, `${count(answer.total)} rollouts checked`, answer.indexed_frames < answer.frames ? ` so far (${answer.indexed_frames} of ${answer.frames} steps)` : "", ". A suspicion is a reason to read, not a verdict."),
      found.length ? null : notice("empty", "Nothing suspicious was found.", "Checked: rewards for ambiguous answers, the last-number rule, unsupported steps, contradicting monitors, copied prompts, garbled text."),
      h("div", { class: "suspicious-grid" }, found.map((group) => h("section", { class: "panel" },
        h("header", { class: "panel-head" }, h("h2", {}, group.label), h("a", { class: "button", href: link("run", store.id, "rollouts", { suspicious: group.id }), "aria-label": `Show ${count(group.count)}: ${group.label}` }, count(group.count))),
        h("ul", { class: "examples" }, group.examples.map((r) => h("li", {},
          h("a", { href: link("run", store.id, "rollouts", { suspicious: group.id, ref: r.ref, first: r.step, last: r.step }) },
            verdictMark(r.correct), h("span", { class: "muted" }, ` step ${r.step}, ${r.split}`),
            h("span", { class: "reason", dir: "auto" }, visible(r.suspicions.find((s) => s.id === group.id)?.reason ?? "")),
            h("span", { class: "preview", dir: "auto" }, visible(r.text.slice(0, 200).replaceAll("\n", " ↵ ")))))))))),
      found.length ? h("div", { class: "toolbar slim" }, h("span", { class: "muted" }, "These examples as a table:"), tableButtons("suspicious", () => examplesTable(answer))) : null,
      found.length && found.length < answer.groups.length ? h("p", { class: "muted" }, "Not found: ", answer.groups.filter((g) => !g.count).map((g) => g.label).join("; "), ".") : null);
  };
  void load();
  return { update: () => undefined, destroy: () => window.clearTimeout(timer) };
}

function examplesTable(answer: SuspiciousAnswer): Table {
  return {
    columns: ["suspicion", "reason", "ref", "step", "split", "correct", "text"],
    rows: answer.groups.flatMap((group) => group.examples.map((r) => [group.label, r.suspicions.find((s) => s.id === group.id)?.reason, r.ref, r.step, r.split, r.correct, r.text])),
  };
}
