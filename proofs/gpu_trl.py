"""The TRL side of `python -m proofs.gpu`: seconds per GRPO step on the same device, model and problems.

    .venv-bench/bin/python -m proofs.gpu_trl '{"model": "pocket", "device": "cpu", "steps": 3, ...}'

It runs in the environment of `make bench` (TRL is not a dependency of Glasshouse) and prints one line of JSON. A
step is everything between `on_step_begin` and `on_step_end`; the first one is left out.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from glasshouse.models.policy import load_policy
from glasshouse.rollout.grading import grade_completion
from glasshouse.tasks.base import make_task
from glasshouse.tasks.streams import FreshProblems, Split
from glasshouse.types import Style


class StepTimes(TrainerCallback):
    """Seconds and generated tokens of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(time.perf_counter() - self.started)


def main(settings: dict[str, Any]) -> None:
    policy = load_policy(settings["model"])
    options = policy.task_options(settings["task"], "cot")
    task = make_task(settings["task"], options)
    stream = FreshProblems(task, Split.TRAIN, 0, on_exhausted="stop")
    problems = stream.take(settings["groups"] * settings["steps"])
    rows = []
    for index, problem in enumerate(problems):
        text, _ = policy.encode_prompt(task.messages(problem, Style.COT))
        rows.append({"prompt": text, "index": index})

    def reward(completions: list[str], index: list[int], **_: Any) -> list[float]:
        pairs = zip(completions, index, strict=True)
        return [float(grade_completion(problems[i], text).reward) for text, i in pairs]

    times = StepTimes()
    rollouts = settings["groups"] * settings["group_size"]
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder, use_cpu=settings["device"] == "cpu",
            bf16=settings["dtype"] == "bfloat16", gradient_checkpointing=False, beta=0.0,
            num_iterations=1, top_k=0, top_p=1.0, report_to="none", save_strategy="no",
            per_device_train_batch_size=rollouts, num_generations=settings["group_size"],
            max_completion_length=settings["max_tokens"], max_steps=settings["steps"],
            learning_rate=settings["learning_rate"], disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=policy.model.to(settings["device"]), reward_funcs=reward, args=arguments,
            train_dataset=Dataset.from_list(rows), processing_class=policy.tokenizer,
            callbacks=[times],
        )  # fmt: skip
        trainer.train()
    measured = times.seconds[1:] or times.seconds
    print(json.dumps({"seconds_per_step": statistics.median(measured), "steps": len(measured)}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
