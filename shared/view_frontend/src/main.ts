// The frame of the page: header, navigation, theme, keys, and the view that the address names.

import { RunStore, snapshot } from "./api";
import { announce, type Child, h, notice, replace, type View } from "./dom";
import { duration, visible } from "./format";
import { current, link } from "./router";
import { compareView } from "./views/compare";
import { curvesView } from "./views/curves";
import { overviewView } from "./views/overview";
import { statusBadge } from "./views/parts";
import { problemsView } from "./views/problems";
import { rolloutsView } from "./views/rollouts";
import { runsView } from "./views/runs";
import { studyView } from "./views/study";

const TABS: [string, string][] = [["overview", "Overview"], ["", "Curves"], ["rollouts", "Rollouts"], ["problems", "Problems"]];
const KEYS: [string, string][] = [["j / k", "next, previous rollout"], ["n / p", "next, previous group"], ["g", "group side by side"], ["m", "rendered or source"], ["1 / 0", "label: shows the behaviour, or not"], ["Backspace", "remove the label"], ["u", "undo the last label"], ["/", "search"], ["Esc", "back, clear the search"], ["?", "these keys"]];

const app = document.getElementById("app")!;
const nav = h("nav", { "aria-label": "Pages" });
const live = h("span", { class: "live", role: "status" });
const main = h("main", { id: "main", tabindex: -1 });
const help = h("dialog", { "aria-label": "Keys" }, h("h2", {}, "Keys"), h("dl", {}, KEYS.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]).flat()), h("form", { method: "dialog" }, h("button", {}, "Close")));
const theme = h("button", { type: "button", class: "icon" });

let view: View | null = null;
let store: RunStore | null = null;
let shown = "";
/** Where a report begins: its run, or the comparison of its runs. */
const home = !snapshot ? link("runs")
  : snapshot.study ? link("study", snapshot.study.id)
  : snapshot.runs.length === 1 ? link("run", snapshot.runs[0]!.id, "overview")
  : link("compare", "", "", { runs: snapshot.runs.map((r) => r.id).join("|") });

const THEMES: [string, string][] = [["auto", "◐"], ["light", "☀"], ["dark", "☾"]];

function setTheme(place: number): void {
  const [name, sign] = THEMES[place % THEMES.length]!;
  document.documentElement.dataset["theme"] = name;
  replace(theme, sign);
  Object.assign(theme, { title: `Colours: ${name}`, ariaLabel: `Colours: ${name}. Change`, onclick: () => setTheme(place + 1) });
}

function setLive(connected: boolean): void {
  if (snapshot) return;
  live.textContent = connected ? "live" : "not connected";
  live.classList.toggle("off", !connected);
}

function render(): void {
  const route = current();
  const key = [route.view, route.id, route.tab].join("\n");
  if (key === shown && view) {
    view.update();
    drawNav();
    return;
  }
  const isSameRun = route.view === "run" && store?.id === route.id;
  view?.destroy();
  view = null;
  shown = key;
  if (!isSameRun) {
    store?.destroy();
    store = null;
  }
  main.className = `view-${route.view} tab-${route.tab || "curves"}`;
  const content = h("div", { class: "content" });
  replace(main, content);
  document.title = `${{ runs: "Runs", compare: "Compare" }[route.view] ?? route.id} · Glasshouse`;
  if (route.view === "runs") view = runsView(content, setLive);
  else if (route.view === "compare") view = compareView(content);
  else if (route.view === "study") view = studyView(content, route.id);
  else if (route.view === "run") openRun(content, route.id, route.tab);
  else replace(content, h("h1", {}, "Glasshouse"), notice("error", "There is no such page.", h("a", { href: link("runs") }, "All runs")));
  drawNav();
  window.scrollTo(0, 0);
}

function openRun(content: HTMLElement, id: string, tab: string): void {
  if (!store) {
    store = new RunStore(id, setLive);
    void store.start();
  }
  const here = store;
  const head = h("div", { class: "run-head" });
  const body = h("div", { class: "run-body" });
  replace(content, head, body);
  const drawHead = (): void => {
    const run = here.run;
    if (here.error) {
      replace(content, h("h1", {}, id), notice("error", "The run cannot be shown.", here.error, " ", h("a", { href: link("runs") }, "All runs")));
      return;
    }
    if (!run) {
      replace(head, h("h1", {}, id));
      return;
    }
    replace(head,
      h("div", { class: "title-row" }, h("h1", {}, run.id), statusBadge(run.status),
        h("p", { class: "muted" }, visible(run.facts), run.seconds_left === null ? "" : ` · ${duration(run.seconds_left)} left`,
          run.study ? h("span", {}, " · study ", h("a", { href: link("study", run.study) }, run.study)) : null)),
      tab === "overview" || (!tab && run.status !== "running") ? [run.verdict ? h("p", { class: "lead" }, visible(run.verdict)) : null, run.said.map((line) => h("p", { class: "hint" }, visible(line)))].flat() : null,
      warning("Some monitors cannot be applied to the rollouts.", run.notes),
      warning("A part of this run cannot be read.", run.damage.map((d) => h("span", {}, h("code", {}, d.file), ` ${d.problem}. ${d.remedy}`))));
    drawNav();
  };
  here.subscribe(drawHead);
  drawHead();
  const make = (): void => {
    if (view || here !== store || (!here.run && tab !== "rollouts")) return;
    view = tab === "overview" ? overviewView(body, here)
      : tab === "rollouts" ? rolloutsView(body, here)
      : tab === "problems" ? problemsView(body, here)
      : curvesView(body, here);
  };
  // The list of rollouts needs nothing of the run, so both requests are made at once.
  if (here.run || tab === "rollouts") make();
  else {
    replace(body, notice("loading", "Reading the run…"));
    const unsubscribe = here.subscribe(() => { unsubscribe(); make(); });
  }
}

function warning(title: string, items: Child[]): HTMLElement | null {
  return items.length ? h("div", { class: "notice warn", role: "status" }, h("strong", {}, title), h("ul", {}, items.map((item) => h("li", {}, item)))) : null;
}

function drawNav(): void {
  const route = current();
  const item = (href: string, text: string, on: boolean): HTMLElement => h("a", { href, "aria-current": on ? "page" : null }, text);
  const isSingle = snapshot && snapshot.runs.length < 2;
  const compare = snapshot ? home : link("compare", "", "", route.view === "compare" ? Object.fromEntries(route.params) : {});
  replace(nav,
    isSingle ? null : [item(link("runs"), "Runs", route.view === "runs"), item(compare, "Compare", route.view === "compare")],
    isSingle || route.view !== "run" ? null : h("span", { class: "divider", "aria-hidden": "true" }),
    route.view === "run" ? TABS.filter(([tab]) => store?.run?.tabs.includes(tab) ?? true).map(([tab, text]) => item(link("run", route.id, tab), text, route.tab === tab)) : null,
  );
  const here = nav.querySelector<HTMLElement>("[aria-current]");
  if (here) nav.scrollLeft = here.offsetLeft - nav.offsetLeft - (nav.clientWidth - here.offsetWidth) / 2;
}

function onkey(event: KeyboardEvent): void {
  const inField = event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement || event.target instanceof HTMLSelectElement;
  if (event.key === "?" && !inField && !help.open) {
    help.showModal();
    event.preventDefault();
  } else if (!help.open && view?.onkey?.(event)) event.preventDefault();
}

replace(app,
  h("header", { class: "top" },
    h("a", { class: "brand", href: home, "aria-label": "Glasshouse, start" }, "Glasshouse"),
    nav,
    h("div", { class: "tools" }, live,
      theme,
      h("button", { type: "button", class: "icon", "aria-label": "Keys", title: "Keys", onclick: () => help.showModal() }, "?"))),
  main,
  h("div", { id: "announcements", class: "offscreen", "aria-live": "polite" }),
  help);
setTheme(0);
if (snapshot) {
  live.textContent = "report";
  live.classList.add("off");
  live.title = "A snapshot: this file does not change. `glasshouse view` is the live page.";
  if (!location.hash.startsWith("#/")) history.replaceState(null, "", home);
}
document.querySelector(".skip")?.addEventListener("click", (event) => {
  event.preventDefault(); // the address is the state of the page
  main.focus();
});
window.addEventListener("hashchange", render);
document.addEventListener("keydown", onkey);
window.addEventListener("unhandledrejection", (event) => announce(String((event.reason as Error)?.message ?? "")));
render();
