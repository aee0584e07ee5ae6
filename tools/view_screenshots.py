"""Photographs the page of a real run for the docs: `make view-screenshots`.

Trains the example of training/example.rl with 40 steps and an evaluation every 5, records the page while
it trains (docs/figures/view-live.gif), and writes docs/figures/view-*.png. `--run DIR` photographs an
existing run instead.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), "")
PICTURES = {
    "view-run-light": ("#/run/{run}?smooth=5", 1440, 900, "light"),
    "view-rollouts-light": ("#/run/{run}/rollouts?first=10&last=10", 1440, 900, "light"),
    "view-rollouts-dark": (
        "#/run/{run}/rollouts?kind=train&correct=no&view=group",
        1440,
        900,
        "dark",
    ),
    "view-suspicious-light": ("#/run/{run}/suspicious", 1440, 900, "light"),
    "view-run-narrow": ("#/run/{run}", 390, 844, "light"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", help="photograph this run instead of training one")
    args = parser.parse_args()
    if not CHROMIUM:
        print("error: install chromium (Debian: apt-get install chromium).", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        runs.mkdir()
        training = None
        if args.run:
            shutil.copytree(args.run, runs / Path(args.run).name)
        else:
            command = [
                sys.executable, str(ROOT / "training" / "example.rl" / "train.py"), "steps=40",
                "evaluate.every=5", "evaluate.problems=100", f"out={runs / 'sum_digits-grpo-1'}",
            ]  # fmt: skip
            training = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        command = [
            sys.executable,
            "-m",
            "glasshouse",
            "view",
            str(runs),
            "--port",
            "0",
            "--cache",
            folder,
        ]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            photograph(server.stdout.readline().split()[-1], training)
        finally:
            server.terminate()
            server.wait(20)
            if training:
                training.terminate()
                training.wait(60)
    return 0


def photograph(address: str, training: subprocess.Popen[bytes] | None) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 620})
        page.goto(address)
        link = page.locator("a.run-name").first
        link.wait_for(timeout=120_000)
        run = link.inner_text()
        if training:
            record_live(page, f"{address}#/run/{run}", training)
        for name, (state, width, height, scheme) in PICTURES.items():
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            picture = context.new_page()
            picture.goto(address + state.format(run=run))
            picture.locator("h1").first.wait_for()
            picture.locator(".notice.loading").wait_for(state="detached")
            if "rollouts" in name:
                picture.locator("article.rollout").first.wait_for()
                picture.get_by_text("indexed").wait_for(state="detached", timeout=300_000)
            picture.wait_for_timeout(800)
            save_picture(picture.screenshot(), FIGURES / f"{name}.png")
            context.close()
        browser.close()


def save_picture(data: bytes, file: Path) -> None:
    """With a palette of 128 colours: a third of the size."""
    from io import BytesIO

    from PIL import Image

    image = Image.open(BytesIO(data)).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)
    print(file, file.stat().st_size)


def record_live(page: Any, address: str, training: subprocess.Popen[bytes]) -> None:
    """A picture per second while the run trains, as an animated GIF."""
    from io import BytesIO

    from PIL import Image

    page.goto(address)
    page.locator(".line .curve").first.wait_for(state="attached", timeout=300_000)
    frames = []
    while training.poll() is None and len(frames) < 120:
        frames.append(
            Image.open(BytesIO(page.screenshot())).convert(
                "P", palette=Image.Palette.ADAPTIVE, colors=48
            )
        )
        page.wait_for_timeout(1000)
    training.wait(600)
    kept = frames[:: max(1, len(frames) // 30)]
    file = FIGURES / "view-live.gif"
    kept[0].save(file, save_all=True, append_images=kept[1:], duration=200, loop=0, optimize=True)
    print(file, file.stat().st_size)


if __name__ == "__main__":
    sys.exit(main())
