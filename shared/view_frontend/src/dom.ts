// Elements are built node by node; text only ever becomes a text node, so no text can become markup.

export type Child = Node | string | number | null | undefined | false;
type Listener = (event: never) => void;
type Attributes = Record<string, string | number | boolean | null | undefined | Listener>;

const SVG = "http://www.w3.org/2000/svg";

export function setAttributes(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

function append(element: Element, children: (Child | Child[])[]): void {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** An HTML element: `h("p", { class: "note" }, "text")`. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: (Child | Child[])[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  append(element, children);
  return element;
}

/** An SVG element. */
export function s<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: (Child | Child[])[]): SVGElementTagNameMap[K] {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  append(element, children);
  return element;
}

export function replace(element: Element, ...children: (Child | Child[])[]): void {
  element.replaceChildren();
  append(element, children);
}

/** A select with labelled options. */
export function select(label: string, value: string, options: [string, string][], onchange: (value: string) => void): HTMLLabelElement {
  const control = h("select", { onchange: () => onchange(control.value) }, options.map(([key, text]) => h("option", { value: key }, text)));
  control.value = value;
  return h("label", { class: "field" }, h("span", {}, label), control);
}

/** A button that copies a text to the clipboard. */
export function copyButton(label: string, text: () => string): HTMLButtonElement {
  const copy = async (): Promise<void> => {
    await navigator.clipboard?.writeText(text());
    button.textContent = navigator.clipboard ? "Copied" : "Copying needs localhost or HTTPS";
    announce(button.textContent);
    window.setTimeout(() => (button.textContent = label), 1200);
  };
  const button = h("button", { type: "button", onclick: () => void copy() }, label);
  return button;
}

/** Tell a screen reader what happened. */
export function announce(text: string): void {
  const region = document.getElementById("announcements");
  if (region) region.textContent = text;
}

/** Draw an answer when it arrives, or why there is none. */
export async function show<T>(root: Element, answer: Promise<T>, draw: (answer: T) => void, problem: string): Promise<void> {
  try {
    draw(await answer);
  } catch (error) {
    replace(root, notice("error", problem, (error as Error).message));
  }
}

/** A box that says what is going on when there is nothing to show. */
export function notice(kind: "empty" | "loading" | "error", title: string, ...detail: Child[]): HTMLDivElement {
  return h("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : "status" }, h("strong", {}, title), detail.length ? h("p", {}, ...detail) : null);
}

/** A part of the page that follows the address until it is destroyed. */
export interface View {
  update: () => void;
  destroy: () => void;
  /** Handles a key; returns whether it did. */
  onkey?: (event: KeyboardEvent) => boolean;
}
