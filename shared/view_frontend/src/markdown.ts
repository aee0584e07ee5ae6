// Text of a model as Markdown with formulas. A parser gives tokens, and elements are built from them node by node:
// HTML in the text stays text, a link and an image are shown as they are written, and nothing is loaded.

import { Marked, type Token, type Tokens } from "marked";
import temml from "temml";
import { h, type Child } from "./dom";
import { visible } from "./format";

/** Where a monitor flags the text: start, end, its name. */
export type TextMark = [number, number, string];

/** Longer texts are shown as they are: parsing takes more than linear time. */
const MAX_MARKDOWN = 20_000;
/** Characters of the private use area stand around a marked place while it is parsed. */
const [OPEN, CLOSE] = ["\ue000", "\ue001"];
const FORMULA = /^(?:\$\$([^$]+)\$\$|\\\[([^]+?)\\\]|\\\(([^]+?)\\\)|\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)|(\\boxed\{(?:[^{}]|\{[^{}]*\})*\}))/;
const TAGS: Record<string, "p" | "em" | "strong" | "del" | "blockquote" | "li"> = { paragraph: "p", em: "em", strong: "strong", del: "del", blockquote: "blockquote", list_item: "li" };

const parser = new Marked({
  // 2*3*4 is a product, and ~5 is about 5: only a mark that begins a word is one
  tokenizer: {
    emStrong: (_source, _masked, before = "") => (/[\w)\]]/.test(before) ? undefined : false),
    del: (source) => (source.startsWith("~~") ? false : undefined),
  },
  extensions: [{
    name: "formula",
    level: "inline",
    start: (source: string) => source.search(/\$|\\[[(]|\\boxed/),
    tokenizer: (source: string) => {
      const found = FORMULA.exec(source);
      if (!found) return undefined;
      const display = found[1] ?? found[2];
      return { type: "formula", raw: found[0], text: display ?? found[3] ?? found[4] ?? found[5] ?? "", display: display !== undefined };
    },
  }],
});

/** A page of our own in Markdown, in which \[ is an escaped bracket and not a formula. */
export function renderPage(text: string): Child[] {
  try {
    return build(new Marked().lexer(text), { isMarked: false, names: "" });
  } catch {
    return [visible(text)]; // nested too deeply
  }
}

/** The text rendered, or as it is written if `isSource`; marked places are in <mark>. */
export function renderText(text: string, marks: TextMark[], isSource: boolean): Child[] {
  const marked = insertMarks(text.replaceAll(/[\ue000\ue001]/g, "\ufffd"), marks);
  const names = [...new Set(marks.map((mark) => mark[2]))].join(", ");
  const state = { isMarked: false, names };
  if (!isSource && text.length <= MAX_MARKDOWN) {
    try {
      return build(parser.lexer(marked), state);
    } catch {
      state.isMarked = false; // nested too deeply
    }
  }
  return split(marked, state);
}

type State = { isMarked: boolean; names: string };

function insertMarks(text: string, marks: TextMark[]): string {
  let [result, at] = ["", 0];
  for (const [start, end] of [...marks].sort((a, b) => a[0] - b[0])) {
    if (start < at || start >= text.length) continue;
    result += text.slice(at, start) + OPEN + text.slice(start, end) + CLOSE;
    at = end;
  }
  return result + text.slice(at);
}

/** Text nodes, with <mark> between the two characters; a marked place may go on in the next token. */
function split(text: string, state: State): Child[] {
  return text.split(/([\ue000\ue001])/).map((part) => {
    if (part === OPEN || part === CLOSE) state.isMarked = part === OPEN;
    else if (part) return state.isMarked ? h("mark", { title: state.names }, visible(part)) : visible(part);
    return null;
  });
}

function build(tokens: Token[], state: State): Child[] {
  return tokens.flatMap((token): Child[] => {
    const inner = (): Child[] => ("tokens" in token && token.tokens ? build(token.tokens, state) : split(String("text" in token ? token.text : token.raw), state));
    switch (token.type) {
      case "space": case "def": return [];
      case "br": return [h("br")];
      case "hr": return [h("hr")];
      case "text": case "escape": return inner();
      case "heading": return [h("p", { class: "heading" }, inner())];
      case "code": return [h("pre", {}, split(token.text, state))];
      case "codespan": return [h("code", {}, split(token.text, state))];
      case "list": return [h(token.ordered ? "ol" : "ul", token.ordered ? { start: token.start } : {}, token.items.flatMap((item: Token) => build([item], state)))];
      case "table": return [table(token as Tokens.Table, state)];
      case "formula": return [formula(token as Token & { text: string; display: boolean }, state)];
      default: return TAGS[token.type] ? [h(TAGS[token.type]!, {}, inner())] : split(token.raw, state);
    }
  });
}

function table(token: Tokens.Table, state: State): HTMLElement {
  const row = (cells: Tokens.TableCell[], tag: "th" | "td"): HTMLElement => h("tr", {}, cells.map((cell) => h(tag, {}, build(cell.tokens, state))));
  return h("div", { class: "wide", tabindex: 0 }, h("table", {}, h("thead", {}, row(token.header, "th")), h("tbody", {}, token.rows.map((cells) => row(cells, "td")))));
}

function formula(token: { raw: string; text: string; display: boolean }, state: State): HTMLElement {
  const element = h(token.display ? "div" : "span", { class: "formula" });
  const isMarked = state.isMarked || token.raw.includes(OPEN);
  state.isMarked = token.raw.includes(CLOSE) ? false : isMarked;
  try {
    temml.render(token.text.replaceAll(/[\ue000\ue001]/g, ""), element, { displayMode: token.display, throwOnError: true });
  } catch {
    element.replaceChildren(visible(token.raw.replaceAll(/[\ue000\ue001]/g, "")));
  }
  return isMarked ? h("mark", { title: state.names }, element) : element;
}
