"""`glasshouse rollouts` on a run as it came out of training, and on what is left of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glasshouse import config
from glasshouse.cli import main
from glasshouse.report.rollout_text import escape_control_characters, format_share
from glasshouse.store import RolloutFilter, RolloutReader, read_rollouts
from glasshouse.train import Trainer

MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK}", "steps=2", "data.groups_per_step=4", "generate.group_size=2", "generate.max_tokens=24",
    "evaluate.problems=3", "evaluate.samples=2", "learn.algorithm=dapo", "rollout_log.tokens_every=2",
    "reward.terms={format: 1}",  # the mock model differs in it, now and then
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a"
    Trainer(config.load_config([], [*SMALL, f"out={out}"])).train()
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    folder = tmp_path / "run" / "results" / "rollouts"
    folder.mkdir(parents=True)
    for path in (trained / "results" / "rollouts").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return tmp_path / "run"


def command(run: Path, *arguments: str) -> int:
    return main(["rollouts", str(run), *arguments])


def test_the_overview_counts_every_row_and_byte(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(trained) == 0
    said = capsys.readouterr()
    assert said.err == ""
    rows = list(read_rollouts(trained / "results" / "rollouts"))
    assert f"{len(rows):,} rollouts in" in said.out
    assert "kB raw" in said.out
    for word in ("validation", "train", "glasshouse rollouts", "--sql"):
        assert word in said.out
    summary = json.loads((trained / "results" / "summary.json").read_text())
    files = (trained / "results" / "rollouts").glob("*.zst")
    assert summary["record"]["bytes"] == sum(p.stat().st_size for p in files)
    assert summary["record"]["rows"] == len(rows)


def test_groups_that_were_replaced_are_recorded_too(trained: Path) -> None:
    """Everything drawn is there once: what was learned from, and what was drawn again."""
    rows = list(read_rollouts(trained / "results" / "rollouts", "train", "replaced"))
    for step in (1, 2):
        numbers = {(r["kind"], r["group"]) for r in rows if r["step"] == step}
        assert sorted(n for _, n in numbers) == list(range(len(numbers)))
    replaced = [r for r in rows if r["kind"] == "replaced"]
    kept = [r for r in rows if r["kind"] == "train"]
    assert replaced
    assert all(r["advantage"] == 0 for r in replaced)
    assert {r["key"] for r in replaced}.isdisjoint({r["key"] for r in kept})
    for step, group in {(r["step"], r["group"]) for r in replaced}:
        assert len({r["reward"] for r in replaced if (r["step"], r["group"]) == (step, group)}) == 1


def test_tokens_are_thinned_and_texts_never(trained: Path) -> None:
    for row in read_rollouts(trained / "results" / "rollouts"):
        assert (row["tokens"] is None) == (row["step"] % 2 == 1)
        assert row["prompt"]
        assert row["completion"]
        assert row["length"] > 0


def test_json_lines_are_the_rows(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(trained, "--json", "--kind", "validation", "--step", "0", "--limit", "4") == 0
    lines = capsys.readouterr().out.split("\n")[:-1]
    query = RolloutFilter(kinds=("validation",), last=0)
    wanted = list(RolloutReader(trained / "results" / "rollouts").rows(query))[:4]
    assert [json.loads(line) for line in lines] == wanted


def test_single_rollouts_and_groups_are_shown(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    row = next(read_rollouts(trained / "results" / "rollouts", "train"))
    where = f"{row['step']}:{row['group']}"
    assert command(trained, "--kind", "train", "--show", "--limit", "1") == 0
    said = capsys.readouterr().out
    for word in (row["question"].split()[-1], "gold", "reward", "advantage", f"rule {row['rule']}"):
        assert word in said
    assert command(trained, "--group", where) == 0
    said = capsys.readouterr().out
    assert f"group {row['group']}: gold {row['gold']}" in said
    assert "of 2 correct" in said
    assert command(trained, "--show", "--prompt", "--limit", "1", "--step", "1") == 0
    assert "tokens were not logged" in capsys.readouterr().out


def test_sql_and_export(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select kind, count(*) as n from rollouts group by kind order by kind"
    assert command(trained, "--json", "--sql", query) == 0
    found = {r["kind"]: r["n"] for r in map(json.loads, capsys.readouterr().out.split("\n")[:-1])}
    rows = list(read_rollouts(trained / "results" / "rollouts"))
    assert found == {k: sum(r["kind"] == k for r in rows) for k in found}
    assert sum(found.values()) == len(rows)
    assert command(trained, "--sql", query) == 0
    assert "validation" in capsys.readouterr().out
    assert command(trained, "--export", str(tmp_path / "x.parquet")) == 0
    assert f"{len(rows):,} rollouts written" in capsys.readouterr().out


def test_damage_is_exit_code_1_and_what_can_be_read_is_shown(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "results" / "rollouts" / "train.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-9])
    for how in ([], ["--json"], ["--sql", "select count(*) from rollouts"], ["--show"]):
        assert command(run, "--kind", "train", *how) == (1 if "--show" not in how else 0)
        said = capsys.readouterr()
        assert ("damage: train, step 2: train.jsonl.zst ends 9 bytes" in said.err) == (
            "--show" not in how  # its three were read before the damage
        )
        assert said.out
    assert command(run, "--kind", "train", "--step", "2") == 1
    data = (run / "results" / "rollouts" / "manifest.jsonl").read_bytes()
    (run / "results" / "rollouts" / "manifest.jsonl").write_bytes(data[:-4])
    assert command(run, "--kind", "validation", "--step", "0") == 0
    assert "note: manifest.jsonl ends within a line" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--step", "99"], "is like that. The record holds"),
        (["--task", "chess"], "is like that"),
        (["--text", "no such words", "--json"], "is like that"),
        (["--sql", "select 1", "--key", "none"], "is like that"),
        (["--step", "3..1"], "range as in 10..20"),
        (["--step", "soon"], "range as in 10..20"),
        (["--reward", ".."], "range as in 10..20"),
        (["--group", "3"], "step and group, as in 12:0"),
        (["--regex", "("], "no regular expression"),
        (["--limit", "0"], "at least 1"),
        (["--export", "x.xlsx"], ".parquet, .jsonl or .csv"),
        (["--sql", "selec"], "cannot be answered"),
    ],
)
def test_a_mistake_is_a_sentence(
    trained: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(trained, *arguments) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""


def test_what_is_no_run_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path / "none") == 2
    assert "does not exist" in capsys.readouterr().err
    assert command(tmp_path) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_a_terminal_is_shown_what_it_must_not_obey() -> None:
    assert (
        escape_control_characters("a\x1b[2Jb\u202ec\udc80\n\td") == "a\\x1b[2Jb\\u202ec\\udc80\n\td"
    )
    assert [
        format_share(0, 9),
        format_share(1, 1000),
        format_share(999, 1000),
        format_share(9, 9),
    ] == [
        "<1%",
        "<1%",
        ">99%",
        "100%",
    ]
