"""Rollouts of other trainers on the page, and labels that a person gives there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.view.conftest import ADDRESS, Watched, serve
from tests.view.example_runs import write_run
from tests.view.test_report import read_data

import glasshouse
from glasshouse.cli.app import main
from glasshouse.errors import RolloutFileError
from glasshouse.runs.foreign import RolloutSource
from glasshouse.runs.labels import labels_file, read_labels
from glasshouse.view.app import make_app
from glasshouse.view.library import Library

pytestmark = pytest.mark.xdist_group("view page")  # one worker starts the browser once
FIXTURES = Path(__file__).resolve().parents[1] / "measurement" / "fixtures"
COT = (
    "**Adding** \\(x^2\\) and 2*3*4.\n\nThe note says $\\frac{1}{2}$. <img src=x onerror=alert(1)>\n\n"
    "- one\n- [a link](https://example.com)\n"
)
RULE = {"monitors": ["rule:note=(?i)note"]}


def write_rollouts(file: Path, count: int = 8) -> Path:
    rows = [
        {"prompt": f"problem {n % 4}", "completion": f"<think>{COT if n % 2 else 'So.'}</think>The answer is {n}",
         "gold": str(n % 4), "step": n // 4}
        for n in range(count)
    ]  # fmt: skip
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def make_client(*paths: Path, **options: Any) -> TestClient:
    app = make_app(Library(paths, options))
    return TestClient(app, base_url=ADDRESS)


def post(client: TestClient, body: Any, **headers: str) -> int:
    given = {"origin": ADDRESS, "x-glasshouse-page": client.get("/api/info").json()["token"]}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/api/label", content=json.dumps(body), headers=given).status_code


@pytest.mark.parametrize(
    ("name", "format", "rollouts", "checkpoints"),
    [("trl", "trl", 16, ["1", "2"]), ("verifiers_traces.jsonl", "verifiers", 18, [""]),
     ("prime_rl", "verifiers", 18, ["1", "2"]), ("inspect.eval", "inspect", 48, ["mockllm/model"]),
     ("inspect_json", "inspect", 8, ["0", "200"]), ("hugging_face", "columns", 8, [""])],
)  # fmt: skip
def test_files_of_other_projects_have_the_page_of_a_run(
    name: str, format: str, rollouts: int, checkpoints: list[str]
) -> None:
    client = make_client(FIXTURES / name)
    (listed,) = client.get("/api/runs").json()["runs"]
    assert (listed["id"], listed["status"]) == (name, "file")
    run = client.get("/api/run", params={"run": name}).json()
    assert run["task"] == format
    assert list(run["names"].values()) == checkpoints
    assert not run["damage"]
    report = glasshouse.measure(FIXTURES / name, progress=False)
    for id, measured in report.cells[-1].measures.items():
        if measured.value is not None:
            assert run["measures"][id]["points"][-1]["value"] == measured.value, id
    page = client.get("/api/rollouts", params={"run": name, "limit": 400}).json()
    assert page["matching"] == rollouts == len({row["ref"] for row in page["rows"]})


def test_files_runs_and_folders_are_shown_beside_each_other(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "try", steps=1)
    (tmp_path / "more").mkdir()
    file, folder = (
        write_rollouts(tmp_path / "a.jsonl"),
        write_rollouts(tmp_path / "more" / "b.jsonl"),
    )
    library = Library([file, folder.parent, tmp_path / "runs"])
    assert {id: run.is_file for id, run in library.catalog.runs.items()} == {
        "a.jsonl": True, "more": True, "try": False,
    }  # fmt: skip
    index = library.open_run("a.jsonl").open_index(budget=10)
    assert index.count() == 8
    write_rollouts(file, 1100)  # more than a batch
    assert library.open_run("a.jsonl").poll()
    index = library.open_run("a.jsonl").open_index(budget=60)
    assert (index.count(), index.missing()) == (1100, [])


def test_a_file_that_cannot_be_read_is_an_error_at_the_start_or_named_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.jsonl").write_text('{"words": "no completion"}\n')
    assert main(["view", str(tmp_path / "x.jsonl")]) == 2
    assert "completion" in capsys.readouterr().err
    assert main(["view", str(tmp_path / "x.jsonl"), "--map", "completion=word"]) == 2
    assert '"words"' in capsys.readouterr().err
    (tmp_path / "x.bin").write_text("")
    assert main(["view", str(tmp_path / "x.bin")]) == 2
    file = write_rollouts(tmp_path / "a.jsonl")
    with open(file, "a") as handle:
        handle.write("{half a row")
    client = make_client(file)
    (damage,) = client.get("/api/run", params={"run": "a.jsonl"}).json()["damage"]
    assert "after row 8" in damage["problem"]
    assert client.get("/api/rollouts", params={"run": "a.jsonl"}).json()["damage"]


# --- labels ----------------------------------------------------------------------------------


def test_labels_are_written_beside_the_file_and_are_what_measure_reads(tmp_path: Path) -> None:
    file = write_rollouts(tmp_path / "a.jsonl")
    before = file.read_bytes()
    client = make_client(file)
    for ref, label in (
        ("file.0.0", 1),
        ("file.0.1", 0),
        ("file.0.1", 1),
        ("file.0.3", 1),
        ("file.0.3", None),
    ):
        assert post(client, {"run": "a.jsonl", "ref": ref, "label": label}) == 200
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "a.jsonl.labels.jsonl"]
    again = make_client(file)  # after a restart
    page = again.get("/api/rollouts", params={"run": "a.jsonl", "label": "yes"}).json()
    assert [row["ref"] for row in page["rows"]] == ["file.0.0", "file.0.1"]
    assert page["facets"]["label"] == {"yes": 2}
    assert post(again, {"run": "a.jsonl", "ref": "file.0.5", "label": 0}) == 200
    behaviour = [r.behaviour for r in RolloutSource(file).rollouts()]
    assert behaviour == [True, True, None, None, None, False, None, None]
    report = glasshouse.measure(file, monitors=RULE["monitors"], progress=False)
    assert report.mapping["label"] == "human_label"
    first, second = (cell.measures for cell in report.cells)
    assert (first["behaviour"].value, first["behaviour"].n) == (1, 2)
    assert first["note.disclosure"].value == 0.5
    assert second["behaviour"].value == 0
    assert first["rollout_accuracy"].n == 4  # what needs no label has all rollouts
    labels_file(file).write_text("{}\n")
    with pytest.raises(RolloutFileError, match="line 1"):
        glasshouse.measure(file, progress=False)


def test_labels_of_a_run_are_beside_it_and_never_in_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "try", steps=1)
    files = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    client = make_client(run)
    assert post(client, {"run": "try", "ref": "train.1.0", "label": 1}) == 200
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == files
    assert list(read_labels(run).values()) == [True]
    assert (tmp_path / "try.labels.jsonl").is_file()
    labelled = [r for r in RolloutSource(run).rollouts() if r.behaviour]
    assert len({(r.prompt, r.text) for r in labelled}) == 1  # equal rollouts have one label


def test_only_the_page_itself_may_write(tmp_path: Path) -> None:
    file = write_rollouts(tmp_path / "a.jsonl")
    client = make_client(file)
    body = {"run": "a.jsonl", "ref": "file.0.0", "label": 1}
    assert post(client, body, origin="http://evil.example") == 403
    assert post(client, body, origin="http://127.0.0.1:1") == 403
    assert post(client, body, origin="") == 403
    assert post(client, body, sec_fetch_site="cross-site") == 403
    assert post(client, body, x_glasshouse_page="wrong") == 403
    assert post(client, body, host="evil.example") == 421
    for wrong in (
        {},
        [1],
        {**body, "label": 2},
        {**body, "ref": "file.0.99"},
        {**body, "run": "../x"},
        {"x": "y" * 20_000},
    ):
        assert post(client, wrong) == 404, wrong
    assert client.put("/api/label").status_code == client.post("/api/runs").status_code == 405
    assert not labels_file(file).exists()
    assert post(client, body) == 200
    os.chmod(tmp_path, 0o500)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write everywhere")
        assert post(client, body) == 404
    finally:
        os.chmod(tmp_path, 0o700)


# --- in a browser ----------------------------------------------------------------------------


def test_a_rollout_is_rendered_marked_and_labelled_by_keys(browser: Any, tmp_path: Path) -> None:
    file = write_rollouts(tmp_path / "a.jsonl")
    with serve(Library([file], RULE)) as address:
        watched = Watched(browser, address)
        page = watched.open("#/run/a.jsonl/rollouts?ref=file.0.1")
        cot = page.locator(".model-text.cot")
        cot.locator("mark").wait_for()
        assert cot.locator("mark").all_inner_texts() == ["note"]
        assert cot.locator("strong").inner_text() == "Adding"
        assert cot.locator("math").count() == 2
        assert cot.locator("math mfrac").count() == 1
        assert cot.locator("li").count() == 2
        assert "2*3*4" in cot.inner_text()
        assert "<img src=x onerror=alert(1)>" in cot.inner_text()
        assert cot.locator("img, a, em, script").count() == 0
        page.keyboard.press("m")
        page.locator("pre.model-text.cot", has_text="\\(x^2\\)").wait_for()
        assert page.locator("pre.model-text.cot mark").inner_text() == "note"
        chip = page.locator("article .chip")
        for key, text in (("1", "label 1"), ("0", "label 0"), ("u", "label 1")):
            page.keyboard.press(key)
            chip.get_by_text(text, exact=True).wait_for()
        assert list(read_labels(file).values()) == [True]
        page.keyboard.press("Backspace")
        chip.wait_for(state="detached")
        assert read_labels(file) == {}
        page.get_by_role("button", name="Label 0").click()
        chip.get_by_text("label 0", exact=True).wait_for()
        page.locator(".filters label", has_text="Label").locator("select").select_option("no")
        page.locator(".summary b", has_text="1").wait_for()
        page.goto(f"{address}#/run/a.jsonl/overview")
        page.locator(".lead").wait_for()
        assert "One run" in page.locator(".lead").inner_text()
        page.get_by_role("columnheader", name="change").wait_for()
        watched.close()


def test_a_report_of_a_file_is_the_page_as_one_file(browser: Any, tmp_path: Path) -> None:
    file = write_rollouts(tmp_path / "a.jsonl")
    client = make_client(file)
    assert post(client, {"run": "a.jsonl", "ref": "file.0.1", "label": 1}) == 200
    out = tmp_path / "a.html"
    monitor = ["--monitor", *RULE["monitors"], "--map", "label=human_label"]
    assert main(["measure", str(file), *monitor, "--report", str(out)]) == 0
    assert len(read_data(out.read_text())["rollouts"]["a.jsonl"]["rows"]) == 8
    for width in (390, 1280):
        watched = Watched(browser, out.as_uri(), width=width)
        page = watched.open("")
        page.get_by_role("columnheader", name="change").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.goto(f"{watched.address}#/run/a.jsonl/rollouts?label=yes")
        page.locator("article mark", has_text="note").wait_for()
        assert page.locator(".item").count() == 1
        page.keyboard.press("0")  # a report cannot be labelled
        assert page.locator("article .chip").inner_text() == "label 1"
        watched.close()
    shutil.copy(file, tmp_path / "bad.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"completion": 7}\n')
    assert main(["measure", str(tmp_path / "bad.jsonl"), "--report", str(tmp_path / "b.html")]) == 2
    assert not (tmp_path / "b.html").exists()
