"""Photographs the page of a real run for the docs: `make view-screenshots`.

Trains and monitors the example of training/example.rl (or takes a finished run: `--run DIR`), then writes its
metrics and events again, step by step, into a folder that `glasshouse view` serves, and records the page as it
grows: docs/figures/view-live.gif. Then it photographs the views (docs/figures/view-*.png) and the report of the
run, opened from disk (docs/figures/report.png).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from glasshouse.runs.run_directory import acquire_lock
from glasshouse.view.report import write_report

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), "")
FILE = ROOT / "tests" / "measurement" / "fixtures" / "inspect_json"
LIVE_FRAMES = 20
PICTURES: dict[str, tuple[str, int, int, Literal["light", "dark"]]] = {
    "view-overview-light": ("#/run/{run}/overview", 1440, 900, "light"),
    "view-run-light": ("#/run/{run}?smooth=5", 1440, 900, "light"),
    "view-rollouts-light": ("#/run/{run}/rollouts?first=10&last=10", 1440, 900, "light"),
    "view-rollouts-dark": (
        "#/run/{run}/rollouts?split=train&correct=no&view=group",
        1440,
        900,
        "dark",
    ),
    "view-file-light": ("#/run/inspect_json/rollouts?ref=file.0.1", 1280, 720, "light"),
    "view-run-narrow": ("#/run/{run}", 390, 844, "light"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--run", type=Path, help="a finished run to photograph instead of training one"
    )
    parser.add_argument("--only", choices=("live", "pictures"), help="write only these")
    args = parser.parse_args()
    if not CHROMIUM:
        print("error: install chromium (Debian: apt-get install chromium).", file=sys.stderr)
        return 2
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="view-") as folder:
        run: Path = args.run or train_example(Path(folder) / "trained" / "sum_digits-grpo-1")
        served = Path(folder) / "runs"
        served.mkdir()
        shown = [str(served), str(FILE), "--monitor", "rule:note=(?i)note"]
        command = [sys.executable, "-m", "glasshouse", "view", *shown, "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            with sync_playwright() as engine:
                browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                if args.only != "pictures":
                    record_live(browser, address, run, served / run.name)
                shutil.copytree(run, served / run.name, dirs_exist_ok=True)
                if args.only != "live":
                    for name, (state, *screen) in PICTURES.items():
                        photograph(browser, address + state.format(run=run.name), name, *screen)
                    report = write_report(served / run.name, out=Path(folder) / "report.html")
                    photograph(browser, report.as_uri(), "report", 1280, 1000, "light")
                browser.close()
        finally:
            server.terminate()
            server.wait(20)
    return 0


def train_example(out: Path) -> Path:
    options = ["evaluate.every=10", f"out={out.relative_to(ROOT)}"]  # NOTES.md shows them
    command = [sys.executable, "training/example.rl/train.py", *options]
    subprocess.run(command, cwd=ROOT, check=True)
    subprocess.run([sys.executable, "-m", "glasshouse", "monitor", str(out)], cwd=ROOT, check=True)
    return out


def record_live(browser: Browser, address: str, run: Path, copy: Path) -> None:
    """Append the run's steps to a copy and take a picture after every few: an animated GIF."""
    (copy / "results").mkdir(parents=True)
    shutil.copy(run / "config.yaml", copy)
    metrics = (run / "results" / "metrics.jsonl").read_text().splitlines(True)
    events = (run / "results" / "events.jsonl").read_text().splitlines(True)
    pending = [(json.loads(line).get("step", 0), line) for line in events]
    page = browser.new_page(viewport={"width": 1100, "height": 620})
    frames: list[Image.Image] = []
    lock = acquire_lock(copy)
    chunk = max(1, len(metrics) // LIVE_FRAMES)
    for start in range(0, len(metrics), chunk):
        lines = metrics[start : start + chunk]
        step = json.loads(lines[-1])["step"]
        append(copy / "results" / "events.jsonl", [t for s, t in pending if s <= step])
        pending = [(s, text) for s, text in pending if s > step]
        append(copy / "results" / "metrics.jsonl", lines)
        if not frames:
            page.goto(f"{address}#/run/{run.name}")
            wait_for_run(page, address, run.name)
        page.get_by_text(f"step {step} of").wait_for(timeout=300_000)
        frames.append(Image.open(BytesIO(page.screenshot(timeout=300_000))).convert("RGB"))
    lock.close()
    page.close()
    palette = frames[-1].quantize(64)
    images = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    file = FIGURES / "view-live.gif"
    images[0].save(file, save_all=True, append_images=[*images[1:], *[images[-1]] * 6],
                   duration=250, loop=0, optimize=True)  # fmt: skip
    print(file, file.stat().st_size)


def wait_for_run(page: Any, address: str, name: str) -> None:
    """The server finds a new run within seconds; open it again until it does."""
    while not page.get_by_role("heading", name="Reward").count():
        page.wait_for_timeout(1500)
        if page.get_by_role("alert").count():
            page.goto("about:blank")
            page.goto(f"{address}#/run/{name}")


def append(file: Path, lines: list[str]) -> None:
    with open(file, "a", encoding="utf-8") as handle:
        handle.writelines(lines)


def photograph(
    browser: Browser,
    address: str,
    name: str,
    width: int,
    height: int,
    scheme: Literal["light", "dark"],
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    context.set_default_timeout(300_000)
    page = context.new_page()
    page.goto(address)
    page.locator("h1").first.wait_for()
    page.locator(".notice.loading").wait_for(state="detached")
    if "rollouts" in name:
        page.locator("article.rollout").first.wait_for()
        page.get_by_text("indexed").wait_for(state="detached")
    page.wait_for_timeout(800)
    save_picture(page.screenshot(), FIGURES / f"{name}.png")
    context.close()


def save_picture(data: bytes, file: Path) -> None:
    """With a palette of 128 colours: a third of the size."""
    image = Image.open(BytesIO(data)).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)
    print(file, file.stat().st_size)


if __name__ == "__main__":
    sys.exit(main())
