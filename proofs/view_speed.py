"""`glasshouse view` at full size, in a real browser against the real server: `make proofs ONLY=view`.

    large   1,000 steps × 256 rollouts: first paint, filters, searches, before and after its index is built
    many    50 runs of 1,000 steps: the list
    live    a step that is written while the page is open: seconds until it is on screen
    day     the server's memory over a day of polling (view_day.py)
    report  `glasshouse report` of the large run: seconds, size, and its first paint from disk
    axe     accessibility of every view, light, dark and narrow (axe-core)

Each figure is a time on the clock, and beside it the CPU seconds that the server, the browser and this
program used in it. On a machine with other work the first is mostly waiting, so with a load average
above 2 the limits are compared with the CPU time, or with `--clock` with the clock.
Exit code 1 if a limit of the issue is exceeded or axe
finds a serious problem.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from tests.view.example_runs import log_step, make_step, open_run, step_metrics, write_run

from glasshouse.config.loading import load_config
from glasshouse.runs.run_directory import RunDirectory
from glasshouse.view.report import write_report
from proofs.view_day import measure_day, resident_mb

ROOT = Path(__file__).resolve().parent.parent
AXE = ROOT / "shared" / "view_frontend" / "node_modules" / "axe-core" / "axe.min.js"
LIMITS = {"first paint": 1.0, "filter or search": 0.3, "live step": 2.0, "list of 50 runs": 1.0}
"""Seconds that the page may take."""
MAX_REPORT_MB = 8.0
MAX_LOAD = 2.0
"""Above this load average, limits are compared with CPU time."""


class Report:
    """Collects figures and failures."""

    def __init__(self, uses_clock: bool) -> None:
        self.uses_clock = uses_clock
        self.figures: dict[str, Any] = {}
        self.failures: list[str] = []

    @contextlib.contextmanager
    def measure(self, name: str, limit: str = "", repeats: int = 1) -> Iterator[None]:
        """Time the block, which does the same thing `repeats` times."""
        cpu_before = used_cpu_seconds()
        started = time.perf_counter()
        yield
        seconds = (time.perf_counter() - started) / repeats
        cpu_after = used_cpu_seconds()
        used = sum(value - cpu_before.get(pid, 0.0) for pid, value in cpu_after.items())
        cpu = used / repeats
        load = os.getloadavg()[0]
        self.figures[name] = {"seconds": round(seconds, 3), "cpu": round(cpu, 3), "load": load}
        bound = f"limit {LIMITS[limit]:g} s" if limit else ""
        print(
            f"  {name:<52} {seconds:8.3f} s  CPU {cpu:7.3f} s  load {load:4.1f}  {bound}",
            flush=True,
        )
        compared = seconds if self.uses_clock or load <= MAX_LOAD else cpu
        if limit and compared > LIMITS[limit]:
            self.failures.append(f"{name}: {compared:.3f} s > {LIMITS[limit]:g} s")


def used_cpu_seconds() -> dict[int, float]:
    """CPU time of this program and of every process that it started, the browser's among them, by
    process; this program's with that of its children that have ended."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(") ")[2].split()
            pid = int(stat.parent.name)
            children.setdefault(int(fields[1]), []).append(pid)
            ticks[pid] = sum(map(int, fields[11 : 15 if pid == os.getpid() else 13]))
    used, queue = dict[int, float](), [os.getpid()]
    while queue:
        pid = queue.pop()
        used[pid] = ticks.get(pid, 0) / os.sysconf("SC_CLK_TCK")
        queue += children.get(pid, [])
    return used


@contextlib.contextmanager
def run_server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The real command; yields its address."""
    command = [sys.executable, "-m", "glasshouse", "view", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield line.split()[-1], process
    finally:
        process.terminate()
        process.wait(20)


def fetch(address: str, path: str) -> Any:
    with urlopen(address + path, timeout=120) as response:
        return json.load(response)


# --- large -----------------------------------------------------------------------------------


def write_large_run(folder: Path, steps: int) -> Path:
    """1,000 steps of 256 rollouts, written once and kept in build/."""
    path = folder / "large"
    if (path / "results" / "summary.json").exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    started = time.perf_counter()
    write_run(path, steps=steps, groups=32, samples=8)
    print(f"  wrote {steps * 256:,} rollouts in {time.perf_counter() - started:.0f} s", flush=True)
    return path


def measure_large(folder: Path, browser: Browser, report: Report, steps: int) -> None:
    write_large_run(folder, steps)
    with run_server(folder / "large") as (address, process):
        warm_up(browser, address)
        curves, rollouts = f"{address}#/run/large", f"{address}#/run/large/rollouts"
        measure_paint(report, "curves, no index", browser, curves, ".line .curve")
        one_step = f"{rollouts}?first=500&last=500"
        measure_paint(
            report, "one step's rollouts, no index", browser, one_step, ".rollout-list .item"
        )
        with report.measure("index of all rollouts, in the background"):
            query = "api/rollouts?run=large&limit=1"
            while (answer := fetch(address, query))["indexed_frames"] < answer["frames"]:
                time.sleep(0.05)
        print(f"  {answer['total']:,} rollouts", flush=True)
        measure_paint(report, "curves, index built", browser, curves, ".line .curve")
        measure_paint(report, "all rollouts, index built", browser, rollouts, ".rollout-list .item")
        measure_filters(browser, address, report)
        measure_queries(address, report)
        report.figures["memory with the index open, MB"] = round(resident_mb(process.pid), 1)
        print(f"  memory of the server: {resident_mb(process.pid):.0f} MB", flush=True)


def warm_up(browser: Browser, address: str) -> None:
    """Server and browser are running, and have shown something else before."""
    fetch(address, "api/info")
    open_page(browser, f"{address}#/study/none", ".notice").close()


def measure_paint(report: Report, name: str, browser: Browser, url: str, selector: str) -> None:
    with report.measure(f"first paint of {name}", "first paint"):
        context = open_page(browser, url, selector)
    context.close()


def open_page(browser: Browser, url: str, selector: str) -> BrowserContext:
    """Open a page in a new browser context and wait until what matters is drawn."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(url, wait_until="commit")
    page.locator(selector).first.wait_for(state="attached", timeout=300_000)
    return context


def measure_filters(browser: Browser, address: str, report: Report) -> None:
    """From the change of a control to the new list on screen."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{address}#/run/large/rollouts")
    page.locator(".rollout-list .item").first.wait_for(timeout=300_000)
    cases = {
        "on screen: filter by grade": ("correct=no", "correct=yes"),
        "on screen: filter by reward range": ("min_reward=0.9", "max_reward=0"),
        "on screen: steps 400 to 600": ("first=400&last=600", "first=200&last=300"),
        "on screen: search of a rare text": ("text=987", "text=978"),
        "on screen: search of a text in every rollout": ("text=what is", "text=digit sum"),
    }
    for name, queries in cases.items():
        change_and_wait(page, queries[1])
        with report.measure(name, "filter or search", repeats=4):
            for number in range(4):
                change_and_wait(page, queries[number % 2])
    page.close()


def change_and_wait(page: Page, query: str) -> None:
    """Set the address's state, and wait until the list shows its answer."""
    page.evaluate(
        """query => new Promise(resolve => {
          const list = document.querySelector('.rollout-list');
          new MutationObserver((_, observer) => {
            if (!list.hasAttribute('aria-busy')) {
              observer.disconnect();
              requestAnimationFrame(() => setTimeout(resolve));
            }
          }).observe(list, {attributes: true, attributeFilter: ['aria-busy']});
          location.hash = '#/run/large/rollouts?' + query;
        })""",
        query,
    )


def measure_queries(address: str, report: Report) -> None:
    """The server's answers alone, without the browser."""
    for query in (
        "correct=no",
        "text=987",
        "text=e",
        "label=none",
        "flagged=step_verifier&sort=-reward",
    ):
        with report.measure(f"server: {query}", "filter or search", repeats=5):
            for _ in range(5):
                fetch(address, f"api/rollouts?run=large&{query}")


# --- many, live -------------------------------------------------------------------------------


def write_many_runs(folder: Path, count: int, steps: int) -> Path:
    path = folder / "many"
    rollouts = make_step(1, 2, 2)
    for number in range(count):
        run = path / f"arm-{number % 5}" / f"seed-{number}"
        if (run / "results" / "summary.json").exists():
            continue
        config = load_config([], [f"seed={number}", f"steps={steps}", f"out={run}"])
        with RunDirectory(run, config) as directory:
            directory.log_event("start", seed=number, model=config.model)
            for step in range(1, steps + 1):
                directory.log_metrics(step_metrics(step, rollouts))
                if step % 50 == 0:
                    directory.log_event("evaluation", step=step, accuracy=step / steps,
                                        accuracy_low=0.1, accuracy_high=0.9)  # fmt: skip
            directory.write_summary({"steps_done": steps, "after": {"accuracy": 0.9}})
            directory.log_event("end", step=steps)
    return path


def measure_many(folder: Path, browser: Browser, report: Report, steps: int) -> None:
    path = write_many_runs(folder, 50, 1000)
    with run_server(path) as (address, _):
        warm_up(browser, address)
        for name in ("list of 50 runs, first time", "list of 50 runs, again"):
            with report.measure(name, "list of 50 runs"):
                context = open_page(browser, address, "table.runs tbody tr:nth-child(50)")
            context.close()


def measure_live(folder: Path, browser: Browser, report: Report, steps: int) -> None:
    shutil.rmtree(folder / "live", ignore_errors=True)
    with (
        open_run(folder / "live" / "run", steps=50, done=2, groups=32, samples=8) as directory,
        run_server(folder / "live") as (address, _),
    ):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{address}#/run/run")
        page.get_by_text("step 2 of 50").wait_for()
        for step in range(3, 9):
            log_step(directory, step, make_step(step, 32, 8))
            with report.measure(f"live step {step} on screen", "live step"):
                page.get_by_text(f"step {step} of 50").wait_for(timeout=120_000)
            time.sleep(0.7)
        page.close()


# --- report ------------------------------------------------------------------------------------


def measure_report(folder: Path, browser: Browser, report: Report, steps: int) -> None:
    run, file = write_large_run(folder, steps), folder / "report.html"
    command = [sys.executable, "-m", "glasshouse", "report", str(run), "--out", str(file)]
    with report.measure("report of the large run, with all files verified"):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    size = file.stat().st_size / 1e6
    report.figures["size of the report, MB"] = round(size, 2)
    print(f"  {size:.2f} MB, limit {MAX_REPORT_MB:g} MB", flush=True)
    if size > MAX_REPORT_MB:
        report.failures.append(f"the report has {size:.2f} MB")
    measure_paint(report, "the report from disk", browser, file.as_uri(), ".highlights article")


# --- axe ---------------------------------------------------------------------------------------


def measure_accessibility(folder: Path, browser: Browser, report: Report, steps: int) -> None:
    if not AXE.exists():
        subprocess.run(["npm", "ci", "--silent"], cwd=AXE.parents[2], check=True)
    script = AXE.read_text()
    path = folder / "axe"
    if not (path / "study").exists():
        shutil.rmtree(path, ignore_errors=True)
        write_run(path / "a")
        write_run(path / "b", overrides=["learn.kl_coef=0.1"])
        (path / "study" / "results").mkdir(parents=True)
        shutil.copy(ROOT / "studies" / "leaked_hint" / "study.yaml", path / "study" / "study.yaml")
        published = ROOT / "studies" / "leaked_hint" / "study.json"
        shutil.copy(published, path / "study" / "results")
    file = write_report(path / "a", out=folder / "axe.html").as_uri()
    states = {
        "runs": "", "overview": "#/run/a/overview", "curves": "#/run/a?smooth=5", "rollouts": "#/run/a/rollouts",
        "group": "#/run/a/rollouts?view=group&ref=train.2.1",
        "problems": "#/run/a/problems?with=b",
        "compare": "#/compare?runs=a%7Cb", "study": "#/study/study",
        "error": "#/run/nothing", "report": file, "rollouts of the report": f"{file}#/run/a/rollouts",
    }  # fmt: skip
    count = 0
    with run_server(path) as (address, _):
        for scheme, width in (("light", 1440), ("dark", 1440), ("light", 390)):
            context = browser.new_context(
                bypass_csp=True, color_scheme=scheme, viewport={"width": width, "height": 900}
            )
            page = context.new_page()
            for name, state in states.items():
                page.goto(state if state.startswith("file:") else f"{address}{state}")
                page.locator("main :is(h1, .notice)").first.wait_for()
                page.locator(".notice.loading").wait_for(state="detached")
                page.wait_for_timeout(400)
                page.evaluate(script)
                result = page.evaluate("() => axe.run()")
                count += 1
                for violation in result["violations"]:
                    where = "; ".join(
                        " ".join(map(str, node["target"])) for node in violation["nodes"][:3]
                    )
                    text = f"{name}, {scheme}, {width} px: {violation['impact']} {violation['id']}: {where}"
                    print(f"  {text}", flush=True)
                    if violation["impact"] in ("serious", "critical"):
                        report.failures.append(text)
                page.goto("about:blank")
            context.close()
    print(f"  axe-core looked at {count} pages", flush=True)


def measure_memory(folder: Path, browser: Browser, report: Report, steps: int) -> None:
    report.figures["day"], failures = measure_day()
    report.failures += failures


PARTS = {
    "large": measure_large,
    "many": measure_many,
    "live": measure_live,
    "day": measure_memory,
    "report": measure_report,
    "axe": measure_accessibility,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"some of: {' '.join(PARTS)}")
    parser.add_argument("--steps", type=int, default=1000, help="steps of the large run")
    parser.add_argument("--clock", action="store_true", help="compare limits with the clock only")
    parser.add_argument("--json", help="write the figures to this file")
    args = parser.parse_args(arguments)
    folder = ROOT / "build" / "view_proof"
    folder.mkdir(parents=True, exist_ok=True)
    chromium = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
    )
    if not chromium:
        print("error: install chromium (Debian: apt-get install chromium).", file=sys.stderr)
        return 2
    report = Report(args.clock)
    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for part in args.parts:
            print(part, flush=True)
            PARTS[part](folder, browser, report, args.steps)
        browser.close()
    if args.json:
        Path(args.json).write_text(json.dumps(report.figures, indent=1) + "\n")
    for failure in report.failures:
        print(f"FAILED {failure}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
