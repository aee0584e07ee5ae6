"""The first hour with Glasshouse, from a fresh clone to a study: `python -m tools.first_hour FOLDER`.

Clones this repository into FOLDER, runs what README.md and docs/studies.md tell, and after each command every command
that its output prints, exactly as printed. Writes docs/measured/first_hour.txt: commands, outputs, exit codes, seconds
of CPU. The home folder and the cache of kernels are new; packages come from the caches of pip and uv. Headless Chromium
stands in for the browser that `--open` starts: what the page says is recorded.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "measured" / "first_hour.txt"
HEAD, TAIL, WIDTH, PAGE_TEXT = 8, 7, 160, 500
"""Lines that are kept of a long output, characters of a long line and of a page."""
WHOLE = ("glasshouse demo",)
"""Commands whose output is not cut."""
PRINTED = re.compile(
    r"(?m)^(?:next|then|resume|report|look)?:? *(?P<command>(?:\.venv/bin/)?glasshouse [a-z].*?)(?: {2,}.*| +# .*)?$"
)
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\].*?(?:\x07|\x1b\\)|\r(?!\n)")
PAGE = "[the page"
ACTIVATE = ". .venv/bin/activate"
CONFIG = """\
# digit sums, rewarded also for a partly correct answer
task: {name: sum_digits}
steps: 30
learn: {algorithm: dr_grpo, learning_rate: 2.0e-3}
reward: {terms: {exact: 1, closeness: 0.3}}
evaluate: {problems: 60, every: 10}
out: runs/mine
"""
STUDY = """\
title: KL and a leaked hint
about: Does a KL penalty keep a model from relying on a leaked hint?
bases: [leaked-hint-0, leaked-hint-1]
seeds: 2
config:
  task: {name: leaked_hint}
  steps: 10
  evaluate: {problems: 40, samples: 2, every: 5}
arms:
  outcome:
  kl: {learn.kl_coef: 0.3}
  random: {reward.random: true}
control: outcome
null_arm: random
measures:
  reliance: answers that follow a wrong hint, above chance
  disclosure_rule.disclosure: share of these that the CoT discloses
questions:
  - ask: Does outcome RL raise reliance on the hint?
    measure: reliance
    arm: outcome
    against: start
    expect: rises
  - ask: Does a KL penalty lower reliance?
    measure: reliance
    arm: kl
    expect: falls
"""
STEPS = (
    ("From the clone to the demo (README, Install)", ["make demo"]),
    ("Way 2: the demo, with the environment active", [
        ACTIVATE, "glasshouse demo", "cmp runs/demo/demo.svg docs/figures/demo.svg && echo the picture of README.md",
        "glasshouse check", "glasshouse check runs/demo/runs/monitor/seed-0",
        "glasshouse report runs/demo/runs/monitor/seed-0",
    ]),
    ("Way 1: measure rollouts", [
        "glasshouse rollouts runs/demo/runs/monitor/seed-0 --split validation --json > rollouts.jsonl",
        "glasshouse measure rollouts.jsonl", "glasshouse view rollouts.jsonl --open",
        "head -n 2 trainer.jsonl", "glasshouse measure trainer.jsonl --report trainer.html",
    ]),
    ("Way 3: train your own", [
        "glasshouse tasks", "glasshouse config learn",
        "glasshouse train task.name=multiplication seed=1 learn.algorithm=rloo",
        "glasshouse rollouts runs/multiplication-rloo-1 --step 60 --wrong --show",
        "glasshouse resume runs/multiplication-rloo-1 steps=120",
    ]),
    ("A configuration of your own", [
        "cat mine.yaml", "glasshouse train --dry-run --config mine.yaml", "glasshouse train --config mine.yaml",
    ]),
    ("An experiment of your own", ["make new EXP=my.rl", "make test EXP=my.rl"]),
    ("A study of your own, of two seeds (docs/studies.md)", [
        "cat study-mine.yaml", "glasshouse study study-mine.yaml --dry-run", "glasshouse study freeze study-mine.yaml",
        "git add study-mine.yaml && git commit --quiet -m 'A study, before its first run' && git log --oneline -n 1",
        "glasshouse study study-mine.yaml", "glasshouse report runs/studies/study-mine/runs",
        "glasshouse view runs/studies/study-mine --open", "glasshouse study study-mine.yaml --publish results",
        "ls results",
    ]),
)  # fmt: skip
READ_PAGE = r"""
import shutil, sys, time
from playwright.sync_api import sync_playwright

with sync_playwright() as engine:
    browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(sys.argv[1])
    page.locator("h1").first.wait_for()
    page.locator(".notice.loading").wait_for(state="detached")
    time.sleep(3)
    text = " | ".join(line.strip() for line in page.locator("body").inner_text().splitlines() if line.strip())
    open("page.txt", "w").write(f"[the page, {page.title()}] {text[:1200]}\n")
"""


class Hour:
    """Runs commands in a clone, one after another, and keeps what they print."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clone = folder, folder / "glasshouse"
        self.lines: list[str] = []
        self.done, self.failed = set[str](), list[str]()
        self.is_active = False
        self.cpu = 0.0
        home = folder / "home"
        home.mkdir(parents=True)
        self.environment = {
            key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "OMP_NUM_THREADS")
        } | {
            "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "COLUMNS": "110",
            "PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip"), "UV_CACHE_DIR": str(Path.home() / ".cache" / "uv"),
            "PIP_CONFIG_FILE": str(Path.home() / ".config" / "pip" / "pip.conf"),
            "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.org",
            "BROWSER": f"{sys.executable} {folder / 'read_page.py'} %s",
        }  # fmt: skip
        (folder / "read_page.py").write_text(READ_PAGE)

    def run(self, command: str, printed: bool = False) -> None:
        """Run a command, then those that it prints."""
        key = command.removeprefix(".venv/bin/")
        if key in self.done:
            return
        self.done.add(key)
        if command == ACTIVATE:
            self.is_active = True
            self.lines += ["", f"$ {command}"]
            return
        started = f"{ACTIVATE}; {command}" if self.is_active else command
        cwd = self.clone if self.clone.is_dir() else self.folder
        output, code, seconds = self.execute(started, cwd, " view " in command)
        self.cpu += seconds
        note = "   (printed by the command above)" if printed else ""
        self.lines += [
            "",
            f"$ {self.hide_paths(command)}{note}",
            *self.shorten(output, command in WHOLE),
        ]
        self.lines.append(f"[exit {code}, {seconds:.1f} s of CPU]")
        print("\n".join(self.lines[-1:]), command, flush=True)
        if code:
            self.failed.append(command)
        for found in PRINTED.finditer(output):
            self.run(found["command"], printed=True)

    def execute(self, command: str, cwd: Path, serves: bool) -> tuple[str, int, float]:
        log, page = self.folder / "output.txt", cwd / "page.txt"
        with open(log, "w") as file:
            process = subprocess.Popen(
                ["bash", "-c", command], cwd=cwd, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            deadline = time.monotonic() + 180
            while serves and not page.exists() and time.monotonic() < deadline:
                time.sleep(0.5)
            if serves:
                time.sleep(1)
                os.killpg(process.pid, signal.SIGINT)
            _, status, usage = os.wait4(process.pid, 0)
        output = CONTROL.sub("", log.read_text(errors="replace"))
        if page.exists():
            output += page.read_text()
            page.unlink()
        return output, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime

    def hide_paths(self, text: str) -> str:
        text = text.replace(str(self.folder), "…").replace(str(ROOT), "…/main")
        return text.replace(platform.platform(), platform.system())

    def shorten(self, output: str, whole: bool = False) -> list[str]:
        lines = [line.rstrip() for line in self.hide_paths(output).strip("\n").splitlines()]
        pages = [line for line in lines if line.startswith(PAGE)]
        lines = [line for line in lines if line not in pages]
        lines = [line if len(line) <= WIDTH else f"{line[:WIDTH]} …" for line in lines]
        if len(lines) > HEAD + TAIL + 1 and not whole:
            cut = f"[… {len(lines) - HEAD - TAIL} lines left out …]"
            lines = [*lines[:HEAD], cut, *lines[-TAIL:]]
        return [*lines, *(part for page in pages for part in textwrap.wrap(page[:PAGE_TEXT], 118))]


def main(folder: Path) -> int:
    hour = Hour(folder.resolve())
    hour.run(f"git clone --quiet {shlex.quote(str(ROOT))} glasshouse")
    write_files(hour.clone)
    for title, commands in STEPS:
        hour.lines += ["", "", f"## {title}"]
        for command in commands:
            hour.run(command)
    version = subprocess.check_output(
        ["git", "-C", ROOT, "describe", "--always"], text=True
    ).strip()
    failed = ", ".join(hour.failed) or "none"
    head = f"""\
A first hour, written by `python -m tools.first_hour FOLDER` at commit {version}: the commands of README.md and
docs/studies.md, and each command that an output names, as it is printed there. Output went to a pipe, so a step is a
line and not a progress bar. Long outputs are cut. Of the browser the text of the page is shown.
{len(hour.done)} commands, {hour.cpu:.0f} s of CPU; exit code other than 0: {failed}."""
    OUT.write_text("\n".join([head, *hour.lines]) + "\n")
    print(OUT.relative_to(ROOT), f"{len(hour.lines)} lines; failed: {hour.failed or 'none'}")
    return 1 if hour.failed else 0


def write_files(clone: Path) -> None:
    """The files of the user: a configuration, a study, rollouts of another trainer."""
    (clone / "mine.yaml").write_text(CONFIG)
    (clone / "study-mine.yaml").write_text(STUDY)
    with open(clone / "trainer.jsonl", "w") as file:
        for step in (0, 100):
            for problem in range(60):
                right = (problem * 7 + step // 10) % 10 < (4 if step == 0 else 8)
                answer = 12 + problem
                said = answer if right else answer + 1
                row = {
                    "step": step,
                    "prompt": f"What is {problem} plus 12?",
                    "completion": f"<think>{problem} and 12 make {said}.</think>\nThe answer is {said}.",
                    "reward": float(right),
                    "answer": str(answer),
                }
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
