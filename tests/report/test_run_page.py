"""The report: one file that holds what a run did, and obeys nothing that a model wrote."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from glasshouse import config
from glasshouse.cli import main
from glasshouse.evaluation.monitor_run import monitor
from glasshouse.report import figures, post_train
from glasshouse.report.run_data import edges, examples, gather, suspicion
from glasshouse.report.run_page import text, write
from glasshouse.store import RolloutLog, read
from glasshouse.store.rollout_rows import rollout_of
from glasshouse.train import Run

MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK}", "steps=4", "data.groups_per_step=4", "generate.group_size=2", "generate.max_tokens=32",
    "evaluate.problems=6", "evaluate.samples=2", "reward.terms={closeness: 1}", "monitor.problems=6",
]  # fmt: skip
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one arm and one of another, in three directories."""
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (
        ("a", ["seed=0"]),
        ("b", ["seed=1"]),
        ("c", ["seed=0", "learn.kl_coef=0.3"]),
    ):
        Run(config.load([], [*SMALL, *more, f"out={folder / name}"])).train()
    monitor(folder / "a", ends=True)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the first one."""
    shutil.copytree(trained / "a", tmp_path / "a")
    return tmp_path / "a"


class Site(ThreadingHTTPServer):
    """Remembers every request."""

    def __init__(self) -> None:
        self.hits: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.hits.append(self.path)
                self.send_error(404)

            def log_message(self, *_: object) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def site() -> Iterator[Site]:
    server = Site()
    yield server
    server.shutdown()


def hostile(url: str) -> str:
    return (
        f'</pre><script>console.error("obeyed");fetch("{url}/script")</script>'
        f'<img src="{url}/image" onerror="console.error(1)"><style>@import "{url}/style";</style>'
        f"<!-- \"'>&amp; \x00\x1b[31m\u202e 7+7=15\n[ANSWER] 7"
    )


def with_hostile(run: Path, url: str) -> None:
    """The newest evaluation of the run holds nothing but hostile completions and questions."""
    rows = list(read(run / "results" / "rollouts", "validation"))
    template = rollout_of(rows[-1])
    bad = replace(
        template,
        step=99,
        text=hostile(url),
        problem=replace(template.problem, question=hostile(url), answer=hostile(url)),
        grade=replace(template.grade, correct=True),
    )
    RolloutLog(run / "results" / "rollouts").append("validation", 99, [bad])


def opened(page: Path, folder: Path) -> tuple[str, list[str]]:
    """The page's elements after a real browser has shown it, and what its console said."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
        f"--user-data-dir={folder / 'browser'}", "--virtual-time-budget=2000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_report_holds_what_the_run_did(trained: Path) -> None:
    page = write([trained / "a"]).read_text()
    for part in ("Before and after", "Over training", "Can it be read?", "Rewards", "Examples",
                 "How to reproduce", "learn:", "torch", "95 % interval", "necessity uplift"):  # fmt: skip
        assert part in page, part
    assert page.count("<svg ") == 5 + 4 + 1  # curves, readability, rewards
    assert "var(--line-0)" in page
    assert figures.INK not in page
    assert len(page) < 1_000_000
    assert page == write([trained / "a"]).read_text()  # twice the same run, twice the same page


def test_a_run_that_was_not_monitored_says_how_to(trained: Path) -> None:
    page = write([trained / "b"]).read_text()
    assert "glasshouse monitor" in page
    assert page.count("<svg ") == 5 + 1


def test_several_runs_stand_side_by_side_as_arms_and_seeds(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.html"
    runs = [str(trained / name) for name in ("a", "b", "c")]
    assert main(["report", *runs, "--out", str(out)]) == 0
    page = out.read_text()
    assert "Arms and seeds" in page
    assert "learn.kl_coef=0.0: " in page
    assert "over 2 seeds" in page
    assert "learn.kl_coef=0.3: " in page
    assert "which has no interval" in page
    assert page.count("<svg ") == 5 + 4


def test_nothing_that_a_model_wrote_is_obeyed(run: Path) -> None:
    with_hostile(run, "http://example.invalid")
    page = write([run]).read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "@import" not in re.sub(r"<(pre|p)\b.*?</\1>", "", page, flags=re.DOTALL)
    assert "&lt;script&gt;console.error(&quot;obeyed&quot;)" in page
    assert "\x00" not in page
    assert "\u202e" not in page
    assert text("<a href='x'>&\x1b") == "&lt;a href=&#x27;x&#x27;&gt;&amp;\\x1b"


def test_examples_show_the_typical_the_best_the_worst_and_the_suspicious(run: Path) -> None:
    names = [name for name, _, _ in examples(run)]
    assert names[:3] == ["typical", "best", "worst"]
    _, _, best = examples(run)[1]
    _, _, worst = examples(run)[2]
    assert best["reward"] >= worst["reward"]
    row = {"correct": True, "reward": 1.0, "rule": "tag", "completion": "2+2=5\n[ANSWER] 4"}
    assert suspicion(row) == "right, though a step is not true: 2+2=5"
    assert suspicion({**row, "completion": "2+2=4\n[ANSWER] 4"}) == ""
    assert "fallback rule: last" in suspicion({**row, "completion": "4", "rule": "last"})
    assert suspicion({**row, "correct": False, "reward": -1.0}) == ""
    first, last = edges(run)
    assert len(first) == len(last) == 4 * 4 * 2  # fewer steps than an edge has: all of them twice


def test_a_report_is_written_while_the_run_goes_on_and_of_a_damaged_record(run: Path) -> None:
    (run / "results" / "summary.json").unlink()
    record = run / "results" / "rollouts" / "validation.jsonl.zst"
    record.write_bytes(record.read_bytes()[:-30])
    page = write([run]).read_text()
    assert "has not come to its end" in page
    assert gather(run).summary is None


def test_a_report_that_fails_is_a_sentence_and_no_failed_run(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(record=True, width=200)
    summary = {"run": str(run), "after": {}, "steps_done": post_train.CURVE}
    (run / "results" / "metrics.jsonl").unlink()
    post_train.close(config.load([], ["monitor.at_end=false"]), summary, console)
    assert "There is no report: " in console.export_text()
    post_train.close(
        config.load([], ["monitor.at_end=true"]), {**summary, "run": "nowhere"}, console
    )
    assert "Readability could not be measured: nowhere is not a run" in console.export_text()
    few = Console(record=True, width=200)
    post_train.close(config.load(), {**summary, "steps_done": post_train.CURVE - 1}, few)
    assert few.export_text() == ""


def test_a_run_of_some_length_ends_with_its_report_and_how_readable_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["steps=10", "data.groups_per_step=2", "evaluate.samples=0", "monitor.at_end=true"]
    assert main(["train", *SMALL, *more, f"out={tmp_path / 'a'}"]) == 0
    out = capsys.readouterr().out
    assert "Can it be read?" in out
    assert "necessity uplift" in out
    assert (tmp_path / "a" / "results" / "report.html").is_file()
    assert main(["train", *SMALL, *more, f"out={tmp_path / 'b'}", "--quiet"]) == 0
    assert not (tmp_path / "b" / "results" / "report.html").exists()


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium on this machine")
def test_a_real_browser_shows_it_without_an_error_or_a_request(
    run: Path, site: Site, tmp_path: Path
) -> None:
    with_hostile(run, site.url)
    shown, said = opened(write([run]), tmp_path)
    assert said == []
    assert site.hits == []
    assert shown.count("<svg ") == 10
    assert "obeyed" in shown  # as text
    assert "<script" not in shown
    # the same text where it is not escaped: the browser would obey, and this test would see it
    (tmp_path / "bare.html").write_text(f"<!doctype html><pre>{hostile(site.url)}")
    _, said = opened(tmp_path / "bare.html", tmp_path)
    assert any("obeyed" in line for line in said)
    assert "/script" in site.hits
