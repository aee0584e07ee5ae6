// One rollout: facts, reward terms, monitors, prompt, chain of thought, answer.

import { copyButton, h } from "./dom";
import { count, label, number, visible } from "./format";
import { renderText, type TextMark } from "./markdown";
import { current, link } from "./router";
import type { Rollout } from "./types";

export function verdictMark(correct: boolean | null): HTMLElement {
  if (correct === null) return h("span", { class: "grade" }, "–");
  return h("span", { class: `grade ${correct ? "right" : "wrong"}` }, correct ? "✓ correct" : "✗ wrong");
}

export function fact(name: string, value: string): HTMLElement | null {
  return value ? h("span", { class: "fact" }, h("span", {}, name), " ", h("b", {}, value)) : null;
}

/** What a person said about it. */
export function labelChip(rollout: Rollout): HTMLElement | null {
  const label = rollout.facets["label"]?.[0];
  return label === "yes" || label === "no" ? h("span", { class: `chip label-${label}` }, label === "yes" ? "label 1" : "label 0") : null;
}

/** A part of the completion, with the places that monitors flag. */
function section(title: string, rollout: Rollout, from: number, to: number, className: string): HTMLElement {
  const text = rollout.text.slice(from, to);
  const marks = rollout.marks.map(([start, end, name]): TextMark => [start - from, end - from, name]).filter(([start]) => start >= 0 && start < text.length);
  const isSource = current().params.get("source") === "1";
  return h("section", {}, h("h3", { class: "label" }, title),
    text.trim() ? h(isSource ? "pre" : "div", { class: `model-text ${className}`, dir: "auto" }, renderText(text, marks, isSource)) : h("p", { class: "muted" }, "empty"));
}

/** `compact`: one of several side by side, without question, prompt and buttons. */
export function rolloutCard(rollout: Rollout, run: string, compact = false): HTMLElement {
  const missing = rollout.characters - rollout.text.length;
  return h(
    "article",
    { class: "rollout", "aria-label": `Rollout ${rollout.ref}` },
    h("div", { class: "facts" },
      rollout.correct === null ? null : verdictMark(rollout.correct),
      labelChip(rollout),
      fact("reward", rollout.reward === null ? "" : number(rollout.reward)),
      fact("advantage", rollout.advantage === null ? "" : number(rollout.advantage, 2)),
      compact ? fact("sample", String(rollout.sample)) : [/^\d*$/.test(rollout.checkpoint) ? fact("step", String(rollout.step)) : fact("checkpoint", visible(rollout.checkpoint)), fact("group", `${rollout.group}, sample ${rollout.sample}`), fact("split", rollout.split), fact("arm", rollout.arm)],
      fact("tokens", rollout.length === null ? "" : String(rollout.length)),
      fact("finish reason", rollout.finish_reason),
      fact("rule", rollout.reason && rollout.rule),
      rollout.behaviour === null ? null : fact("planted behaviour", rollout.behaviour ? "yes" : "no")),
    compact ? null : h("div", { class: "question", dir: "auto" }, renderText(rollout.question, [], false)),
    h("p", { class: "answers" },
      rollout.model_answer === null && !rollout.reason ? null : h("span", {}, "extracted ", h("b", {}, rollout.model_answer === null ? "none" : visible(rollout.model_answer))),
      h("span", {}, "gold ", h("b", {}, visible(rollout.gold_answer) || "–")),
      rollout.reason && !compact ? h("span", { class: "muted" }, visible(rollout.reason)) : null),
    h("div", { class: "completion" },
      section("Chain of thought", rollout, 0, rollout.answer_start, "cot"),
      section("Answer", rollout, rollout.answer_start, rollout.text.length, "answer"),
      missing > 0 ? h("p", { class: "muted" }, `${count(missing)} more characters are not shown.`) : null),
    h("div", { class: "scores" }, termsTable(rollout), verdictsTable(rollout, compact)),
    compact ? null : h("details", { class: "fold" }, h("summary", {}, "Prompt"), h("pre", { class: "model-text prompt", dir: "auto" }, visible(rollout.prompt))),
    compact ? null : h("footer", { class: "toolbar slim" },
      h("a", { class: "button", href: link("run", run, "problems", { key: rollout.key }) }, "Same problem across checkpoints"),
      copyButton("Copy as JSON", () => JSON.stringify(rollout, null, 2)),
      copyButton("Copy link", () => location.href)),
  );
}

function termsTable(rollout: Rollout): HTMLElement | null {
  const terms = Object.entries(rollout.terms ?? {});
  if (!terms.length) return null;
  return h("table", { class: "mini" }, h("caption", {}, "Reward terms"),
    h("tbody", {}, terms.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, label(name)), h("td", { class: "numeric" }, number(value)))),
      h("tr", { class: "sum" }, h("th", { scope: "row" }, "reward"), h("td", { class: "numeric" }, number(rollout.reward)))));
}

function verdictsTable(rollout: Rollout, compact: boolean): HTMLElement | null {
  const verdicts = Object.entries(rollout.verdicts);
  if (!verdicts.length) return null;
  return h("table", { class: "mini" }, h("caption", {}, "Monitors"),
    h("tbody", {}, verdicts.map(([name, v]) => h("tr", { title: compact ? visible(v.reason) : null },
      h("th", { scope: "row" }, label(name)),
      h("td", { class: "numeric" }, number(v.score, 2)),
      h("td", {}, v.flagged === null ? "failed" : h("span", { class: v.flagged ? "flag on" : "flag" }, v.flagged ? "⚑ flagged" : "not flagged")),
      compact ? null : h("td", { class: "muted" }, visible(v.reason))))));
}
