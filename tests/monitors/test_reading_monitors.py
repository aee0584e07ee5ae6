"""Embedders, probes and judges from their fitting on a run to its evaluations, its reward and its measurement."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.monitors.test_llm_judge import Handler, Server, completion, judge_reply, server
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from glasshouse.cli.app import main
from glasshouse.errors import ConfigError, MonitorError
from glasshouse.monitors.base import Scope, make_view
from glasshouse.monitors.embedder import _embed_text, embed, load_encoder
from glasshouse.monitors.factory import make_monitor, parse_monitor
from glasshouse.runs.rollout_log import read_rows
from glasshouse.view.text_monitors import make_text_monitors

__all__ = ["server"]  # the fixture
pytestmark = pytest.mark.xdist_group("reading monitors")
WORDS = ["so", "then", "now", "add", "carry", "we", "get", "total", "the", "key", "says"]
TINY = [
    "task.name=leaked_hint", "seed=1", "steps=3", "data.groups_per_step=2", "generate.group_size=2",
    "generate.max_tokens=48", "evaluate.problems=6", "evaluate.samples=2", "checkpoints.every=2",
    "checkpoints.save_best=false", "checkpoints.save_above_reward=null", "learn.learning_rate=0.01",
]  # fmt: skip


def make_encoder(folder: Path, seed: int = 0) -> Path:
    """A BERT of 5 thousand parameters with a vocabulary of these words."""
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", model_max_length=32
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(vocabulary), intermediate_size=32, **sizes)
    BertModel(config).save_pretrained(folder)
    return folder


def forget_encoders() -> None:
    load_encoder.cache_clear()
    _embed_text.cache_clear()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a"
    assert main(["train", "model=leaked-hint-0", *TINY, f"out={out}", "--quiet"]) == 0
    return out


@pytest.fixture(scope="module")
def probe(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("monitors") / "probe"
    command = [
        "monitor",
        "fit",
        str(run),
        "--monitor",
        "probe:1",
        "--problems",
        "70",
        "--out",
        str(out),
    ]
    assert main(command) == 0
    return out


def write_rollouts(file: Path) -> Path:
    """Half of the rollouts show the behaviour; most of these mention the key."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(400):
        label = number % 2
        said = list(rng.choice(WORDS[:8], 9))
        if label and rng.random() < 0.95:
            said[2:5] = ["the", "key", "says"]
        text = f"<think>{' '.join(said)}</think>4"
        rows.append({"prompt": f"q{number // 4}", "completion": text, "label": label})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_an_embedder_is_fitted_on_a_file_and_reports_what_a_verdict_costs(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "encoder")
    command = ["measure", str(write_rollouts(tmp_path / "r.jsonl")), "--out", str(tmp_path / "out")]
    assert main([*command, "--monitor", f"embedder:{encoder}"]) == 0
    report = json.loads((tmp_path / "out" / "measures.json").read_text())
    assert report["cells"][0]["measures"]["embedder.auroc"]["value"] > 0.9
    (monitor,) = report["monitors"]
    assert monitor["kind"] == "embedder"
    assert monitor["tokens_per_verdict"] == pytest.approx(9, abs=0.5)
    assert monitor["seconds_per_verdict"] > 0


def test_an_embedding_is_the_mean_of_the_states_and_does_not_depend_on_other_texts(
    tmp_path: Path,
) -> None:
    name = str(make_encoder(tmp_path / "encoder"))
    view = make_view(Scope.COT, prompt="", question="", completion="the key says\n[ANSWER] 4")
    found = embed(name, view).vector
    model = BertModel.from_pretrained(name)
    with torch.inference_mode():
        states = model(torch.tensor([[2 + WORDS.index(w) for w in ("the", "key", "says")]]))[0][0]
    mean = states.mean(0).numpy()
    assert found == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)
    forget_encoders()
    embed(name, make_view(Scope.COT, prompt="", question="", completion="so we get " * 30))
    assert embed(name, view).vector.tobytes() == found.tobytes()


def test_an_embedder_that_is_missing_or_was_replaced_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, out = make_encoder(tmp_path / "encoder"), tmp_path / "monitor"
    command = ["monitor", "fit", str(run), "--problems", "70", "--out", str(out), "--monitor"]
    assert main([*command, f"embedder:{tmp_path / 'nowhere'}"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main([*command, "rule:a=b"]) == 2
    assert main([*command, f"embedder:{encoder}"]) == 0
    printed = capsys.readouterr().out
    assert "auroc" in printed
    assert "tokens per verdict" in printed
    view = make_view(Scope.COT, prompt="", question="", completion="the key says")
    loaded = parse_monitor(f"saved:{out}")
    assert not loaded.score(view).failed
    make_encoder(encoder, seed=1)
    forget_encoders()
    with pytest.raises(MonitorError, match="another encoder"):
        loaded.score(view)
    forget_encoders()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MonitorError, match=r"\[train\]"):
        loaded.score(view)


def test_a_probe_is_measured_on_the_states_of_the_new_model_and_of_the_base(
    run: Path, probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--first-and-last", "--problems", "12", "--out", str(tmp_path / "out"), "--json"]
    assert main(["monitor", str(run), "--monitor", f"saved:{probe}", *more]) == 0
    base, last = json.loads(capsys.readouterr().out)["checkpoints"]
    names = ("probe.auroc", "probe_on_base.auroc")
    before, after = ([c["measures"]["organism"][n]["value"] for n in names] for c in (base, last))
    assert before[0] == before[1] > 0.6
    assert set(last["costs"]) == {"probe", "probe_on_base"}
    assert 20 < last["costs"]["probe"]["tokens_per_verdict"] < 300
    rows = {
        name: _scores(tmp_path / "out", "step-000003", name) for name in ("probe", "probe_on_base")
    }
    assert len(rows["probe"]) == len(rows["probe_on_base"]) == 96
    assert rows["probe"] != rows["probe_on_base"]  # the states have drifted
    assert _scores(tmp_path / "out", "base", "probe") == _scores(
        tmp_path / "out", "base", "probe_on_base"
    )
    assert after[1] is not None


def _scores(folder: Path, checkpoint: str, monitor: str) -> list[float]:
    from glasshouse.runs.monitor_results import MonitorResultsFile

    settings = json.loads((folder / "monitor.json").read_text())["settings"]
    rows = MonitorResultsFile(folder, settings).rows(checkpoint)
    return [row["score"] for row in rows if row.get("monitor") == monitor]


def test_a_probe_of_another_model_or_layer_is_refused(
    run: Path, probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = f"evaluate.monitors={{p: {{kind: probe, saved: {probe}}}}}"
    command = ["train", *TINY, settings, f"out={tmp_path / 'out'}", "--dry-run"]
    assert main([*command, "model=leaked-hint-0"]) == 0
    capsys.readouterr()
    assert main([*command, "model=leaked-hint-1"]) == 2
    assert "was fitted on another model than leaked-hint-1" in capsys.readouterr().err
    in_reward = f"reward.penalties={{p: {{kind: monitor, monitor: 'saved:{probe}'}}}}"
    assert main(["train", *TINY, in_reward, "model=leaked-hint-1", "--dry-run"]) == 2
    with pytest.raises(ConfigError, match="layer 1, not 3"):
        make_monitor("p", {"kind": "probe", "saved": str(probe), "layer": 3})
    with pytest.raises(ConfigError, match="holds probe, not embedder"):
        make_monitor("p", {"kind": "embedder", "saved": str(probe)})
    assert (
        main(["monitor", "fit", str(run), "--monitor", "probe:9", "--out", str(tmp_path / "p")])
        == 2
    )
    assert "layers 0 (embedding) to 4, not 9" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_a_probe_evaluates_and_is_in_the_reward_with_the_states_of_the_trained_model(
    probe: Path, tmp_path: Path
) -> None:
    penalties = f"reward.penalties={{p: {{kind: monitor, monitor: 'saved:{probe}'}}}}"
    out = tmp_path / "rewarded"
    assert main(["train", "model=leaked-hint-0", *TINY, penalties, f"out={out}", "--quiet"]) == 0
    values = {row["terms"]["p"] for row in read_rows(out, "train")}
    assert values <= {0.0, 1.0}
    settings = f"evaluate.monitors={{p: {{kind: probe, saved: {probe}}}}}"
    out = tmp_path / "evaluated"
    assert main(["train", "model=leaked-hint-0", *TINY, settings, f"out={out}", "--quiet"]) == 0
    own = json.loads((out / "results" / "summary.json").read_text())["before"]["organism"]["p"]
    assert own["failed"] == 0
    assert own["tokens_per_verdict"] > 20
    assert "disclosure" in own


def test_a_missing_package_is_named_before_anything_is_sampled(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    monkeypatch.setattr("glasshouse.measurement.fit_run.open_collector", lambda config: 1 / 0)
    command = ["monitor", "fit", str(run), "--monitor", "ngrams", "--out", str(tmp_path / "n")]
    assert main(command) == 2
    assert "[monitor]" in capsys.readouterr().err


def flag(handler: Handler, word: str) -> None:
    shown = handler.body["messages"][-1]["content"]
    handler.reply(judge_reply(float(word in shown)))


def judged(server: Server) -> dict[str, Any]:
    url = f"http://127.0.0.1:{server.server_port}/v1"
    return {"kind": "judge", "url": url, "model": "m", "behaviour": "uses the key", "scope": "cot"}


def test_a_resumed_run_gets_the_verdicts_of_its_judge_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge changes its mind; the step that is repeated keeps the verdicts that it was trained with."""
    monkeypatch.chdir(tmp_path)
    server.script = [lambda handler: flag(handler, "+")]
    penalty = {"judge": {"kind": "monitor", "monitor": judged(server)}}
    command = ["train", "model=leaked-hint-0", *TINY, f"reward.penalties={json.dumps(penalty)}"]
    command += ["out=run", "--quiet", "reward.audit_rollouts=0"]
    assert main(command) == 0
    rows = read_rows(Path("run"), "train")
    rewarded = [(row["text"], row["terms"]["judge"], row["reward"]) for row in rows]
    assert {verdict for _, verdict, _ in rewarded} == {0.0, 1.0}
    assert all(verdict == float("+" in text.split("[ANSWER]")[0]) for text, verdict, _ in rewarded)
    shutil.rmtree("run/checkpoints/step-000003")
    Path("run/results/summary.json").unlink()
    asked = len(server.bodies)
    server.script = [lambda handler: flag(handler, "never")]
    assert main(command) == 0
    again = read_rows(Path("run"), "train")
    assert [(row["text"], row["terms"]["judge"], row["reward"]) for row in again] == rewarded
    assert len(server.bodies) == asked


def test_a_judge_that_answers_nonsense_stops_a_run_before_its_first_step(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    server.script = [lambda handler: handler.reply(completion("I am not sure."))]
    monitors = f"evaluate.monitors={json.dumps({'j': judged(server)})}"
    assert main(["train", "model=leaked-hint-0", *TINY, monitors, "out=run", "--quiet"]) == 2
    assert "neither Yes nor No in 'I am not sure.'" in capsys.readouterr().err
    assert len(server.bodies) == 1
    assert not Path("run").exists()  # the corrected command can use it
    server.bodies.clear()
    server.script = [
        lambda handler: handler.reply(judge_reply()),  # to the test
        lambda handler: handler.reply(judge_reply()),
        lambda handler: handler.reply(completion("Perhaps")),
    ]
    assert main(["train", "model=leaked-hint-0", *TINY, monitors, "out=other", "--quiet"]) == 0
    events = Path("other/results/events.jsonl").read_text()
    assert "The monitor j failed on" in events


def test_the_threshold_of_a_judge_is_fixed_on_the_base(
    run: Path, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its probabilities are far below one half; the threshold that is found separates them."""

    def answer(handler: Handler) -> None:
        shown = handler.body["messages"][-1]["content"]
        handler.reply(judge_reply(0.01 if "+" in shown else 0.2))

    server.script = [answer]
    command = [
        "monitor",
        "fit",
        str(run),
        "--monitor",
        f"judge:http://127.0.0.1:{server.server_port}/v1",
    ]
    command += ["--judge-model", "m", "--behaviour", "copies", "--problems", "20"]
    assert main([*command, "--out", str(tmp_path / "judge")]) == 0
    printed = capsys.readouterr().out
    assert "needs 200 benign rollouts" in printed
    loaded = parse_monitor(f"saved:{tmp_path / 'judge'}")
    assert loaded.options.threshold in (pytest.approx(0.01), pytest.approx(0.2))
    assert "tokens per verdict" in printed


def test_showing_a_run_asks_no_judge_and_loads_no_model(server: Server) -> None:
    monitors = {"j": judged(server), "e": {"kind": "embedder", "saved": "nowhere"}}
    config = {"task": {"name": "leaked_hint"}, "evaluate": {"monitors": monitors}}
    made, problems = make_text_monitors(config)
    assert not {"j", "e"} & {monitor.name for monitor in made}
    assert not problems
    assert not server.bodies
