// One rollout: facts, reward terms, monitors, prompt, chain of thought, answer, tinted tokens.

import { get } from "./api";
import { h, notice, replace, segmented } from "./dom";
import { copyButton, fence } from "./export";
import { count, label, number, visible } from "./format";
import { link } from "./router";
import type { Rollout, Tokens } from "./types";

export type Part = "both" | "cot" | "answer";
export type Tint = "none" | "logprob" | "advantage";

export function verdictMark(correct: boolean | null): HTMLElement {
  if (correct === null) return h("span", { class: "grade" }, "–");
  return h("span", { class: `grade ${correct ? "right" : "wrong"}` }, correct ? "✓ correct" : "✗ wrong");
}

export function modelText(text: string, className: string): HTMLElement {
  return h("pre", { class: `model-text ${className}`, dir: "auto" }, visible(text));
}

export interface CardOptions {
  run: string;
  part: Part;
  tint: Tint;
  onpart?: (part: Part) => void;
  ontint?: (tint: Tint) => void;
  compact?: boolean;
}

export function rolloutCard(rollout: Rollout, options: CardOptions): HTMLElement {
  const { run, part } = options;
  const cot = rollout.text.slice(0, rollout.answer_start);
  const answer = rollout.text.slice(rollout.answer_start);
  const text = h("div", { class: "completion" });
  const drawText = (): void => {
    const blocks: HTMLElement[] = [];
    if (part !== "answer") blocks.push(h("section", {}, h("h3", { class: "label" }, "Chain of thought"), cot.trim() ? modelText(cot, "cot") : h("p", { class: "muted" }, "empty")));
    if (part !== "cot") blocks.push(h("section", {}, h("h3", { class: "label" }, "Answer"), answer.trim() ? modelText(answer, "answer") : h("p", { class: "muted" }, "no answer")));
    replace(text, ...blocks);
    const missing = rollout.characters - rollout.text.length;
    if (missing > 0) text.append(h("p", { class: "muted" }, `${count(missing)} more characters are not shown.`));
  };
  drawText();
  if (options.tint !== "none") void tint(text, rollout, options);

  return h(
    "article",
    { class: "rollout", "aria-label": `Rollout ${rollout.ref}` },
    h(
      "header",
      { class: "rollout-head" },
      h("div", { class: "facts" },
        verdictMark(rollout.correct),
        fact("reward", number(rollout.reward)),
        fact("advantage", rollout.advantage === null ? "" : number(rollout.advantage, 2)),
        options.compact ? null : fact("step", String(rollout.step)),
        fact(options.compact ? "sample" : "group", options.compact ? String(rollout.sample) : `${rollout.group}, sample ${rollout.sample}`),
        options.compact ? null : fact("split", rollout.split),
        fact("tokens", rollout.length === null ? "" : String(rollout.length)),
        fact("finish reason", rollout.finish_reason),
        fact("rule", rollout.rule),
        rollout.behaviour === null ? null : fact("planted behaviour", rollout.behaviour ? "yes" : "no"),
      ),
    ),
    rollout.suspicions.length
      ? h("ul", { class: "suspicions" }, rollout.suspicions.map((item) => h("li", {}, h("strong", {}, item.label), ": ", visible(item.reason))))
      : null,
    options.compact ? null : h("p", { class: "question", dir: "auto" }, h("span", { class: "muted" }, "Question "), visible(rollout.question)),
    h("p", { class: "answers" }, h("span", {}, "extracted ", h("b", {}, rollout.model_answer === null ? "none" : visible(rollout.model_answer))), h("span", {}, "gold ", h("b", {}, visible(rollout.gold_answer) || "–")),
      rollout.reason && !options.compact ? h("span", { class: "muted" }, visible(rollout.reason)) : null),
    options.onpart || options.ontint
      ? h("div", { class: "toolbar slim" },
          options.onpart ? segmented("Part", part, [["both", "CoT and answer"], ["cot", "CoT"], ["answer", "Answer"]], (p) => options.onpart!(p as Part)) : null,
          options.ontint && rollout.has_tokens ? segmented("Tint tokens", options.tint, [["none", "No tint"], ["logprob", "Log-probability"], ["advantage", "Advantage"]], (t) => options.ontint!(t as Tint)) : null)
      : null,
    text,
    h("div", { class: "scores" }, termsTable(rollout), verdictsTable(rollout, options.compact ?? false)),
    options.compact ? null : h("details", { class: "fold" }, h("summary", {}, "Prompt"), modelText(rollout.prompt, "prompt")),
    options.compact ? null : h("footer", { class: "toolbar slim" },
      h("a", { class: "button", href: link("run", run, "problems", { key: rollout.key }) }, "Same problem across checkpoints"),
      copyButton("Copy as Markdown", () => toMarkdown(run, rollout)),
      copyButton("Copy as JSON", () => JSON.stringify(rollout, null, 2)),
      copyButton("Copy link", () => location.href)),
  );
}

function fact(name: string, value: string): HTMLElement | null {
  return value ? h("span", { class: "fact" }, h("span", {}, name), " ", h("b", {}, value)) : null;
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

function toMarkdown(run: string, r: Rollout): string {
  const verdicts = Object.entries(r.verdicts).map(([name, v]) => `- ${name}: ${v.flagged ? "flagged" : "not flagged"} (${number(v.score, 2)}) ${v.reason}`);
  return [
    `**${run}**, ${r.split}, step ${r.step}, group ${r.group}, sample ${r.sample}: ${r.correct === null ? "" : r.correct ? "correct" : "wrong"}, reward ${number(r.reward)}, rule ${r.rule || "–"}`,
    "", "Question:", fence(r.question), "Completion:", fence(r.text),
    `Extracted: ${r.model_answer ?? "none"}; gold: ${r.gold_answer || "–"}`, ...verdicts, "", location.href,
  ].join("\n");
}

async function tint(box: HTMLElement, rollout: Rollout, options: CardOptions): Promise<void> {
  try {
    const tokens = await get<Tokens>("tokens", { run: options.run, ref: rollout.ref });
    const values = options.tint === "advantage" ? tokens.pieces.map(() => tokens.advantage ?? 0) : tokens.logprobs;
    const what = { logprob: "log-probability", advantage: "advantage", none: "" }[options.tint];
    const pre = h("pre", { class: "model-text tokens", dir: "auto" }, tokens.pieces.map((piece, i) => {
      const value = values[i] ?? 0;
      const token = h("span", { title: `${what} ${number(value)}`, class: `token ${options.tint === "advantage" ? (value < 0 ? "low" : "high") : "low"}` }, visible(piece));
      const strength = options.tint === "advantage" ? Math.abs(value) / 2 : -value / 3;
      token.style.setProperty("--tint", String(Math.max(0, Math.min(1, strength)).toFixed(2)));
      return token;
    }));
    const legend = { logprob: "Darker tokens were less likely when they were sampled (probability 1 is white).", advantage: "Every token of a rollout has its advantage: blue raises it, orange lowers it.", none: "" }[options.tint];
    replace(box, h("section", {}, h("h3", { class: "label" }, `Tokens by ${what}`), pre, h("p", { class: "muted" }, legend)));
  } catch (error) {
    box.prepend(notice("error", "The tokens cannot be tinted.", (error as Error).message));
  }
}
