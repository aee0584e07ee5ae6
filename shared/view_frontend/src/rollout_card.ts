// One rollout: facts, reward terms, monitors, prompt, chain of thought, answer.

import { copyButton, h } from "./dom";
import { count, label, number, visible } from "./format";
import { link } from "./router";
import type { Rollout } from "./types";

export function verdictMark(correct: boolean | null): HTMLElement {
  if (correct === null) return h("span", { class: "grade" }, "–");
  return h("span", { class: `grade ${correct ? "right" : "wrong"}` }, correct ? "✓ correct" : "✗ wrong");
}

export function fact(name: string, value: string): HTMLElement | null {
  return value ? h("span", { class: "fact" }, h("span", {}, name), " ", h("b", {}, value)) : null;
}

function modelText(text: string, className: string): HTMLElement {
  return h("pre", { class: `model-text ${className}`, dir: "auto" }, visible(text));
}

function section(title: string, text: string, className: string): HTMLElement {
  return h("section", {}, h("h3", { class: "label" }, title), text.trim() ? modelText(text, className) : h("p", { class: "muted" }, "empty"));
}

/** `compact`: one of several side by side, without question, prompt and buttons. */
export function rolloutCard(rollout: Rollout, run: string, compact = false): HTMLElement {
  const missing = rollout.characters - rollout.text.length;
  return h(
    "article",
    { class: "rollout", "aria-label": `Rollout ${rollout.ref}` },
    h("div", { class: "facts" },
      verdictMark(rollout.correct),
      fact("reward", number(rollout.reward)),
      fact("advantage", rollout.advantage === null ? "" : number(rollout.advantage, 2)),
      compact ? fact("sample", String(rollout.sample)) : [fact("step", String(rollout.step)), fact("group", `${rollout.group}, sample ${rollout.sample}`), fact("split", rollout.split)],
      fact("tokens", rollout.length === null ? "" : String(rollout.length)),
      fact("finish reason", rollout.finish_reason),
      fact("rule", rollout.rule),
      rollout.behaviour === null ? null : fact("planted behaviour", rollout.behaviour ? "yes" : "no")),
    rollout.suspicions.length
      ? h("ul", { class: "suspicions" }, rollout.suspicions.map((item) => h("li", {}, h("strong", {}, item.label), ": ", visible(item.reason))))
      : null,
    compact ? null : h("p", { class: "question", dir: "auto" }, h("span", { class: "muted" }, "Question "), visible(rollout.question)),
    h("p", { class: "answers" },
      h("span", {}, "extracted ", h("b", {}, rollout.model_answer === null ? "none" : visible(rollout.model_answer))),
      h("span", {}, "gold ", h("b", {}, visible(rollout.gold_answer) || "–")),
      rollout.reason && !compact ? h("span", { class: "muted" }, visible(rollout.reason)) : null),
    h("div", { class: "completion" },
      section("Chain of thought", rollout.text.slice(0, rollout.answer_start), "cot"),
      section("Answer", rollout.text.slice(rollout.answer_start), "answer"),
      missing > 0 ? h("p", { class: "muted" }, `${count(missing)} more characters are not shown.`) : null),
    h("div", { class: "scores" }, termsTable(rollout), verdictsTable(rollout, compact)),
    compact ? null : h("details", { class: "fold" }, h("summary", {}, "Prompt"), modelText(rollout.prompt, "prompt")),
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
