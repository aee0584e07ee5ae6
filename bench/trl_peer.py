"""TRL's side: `GRPOTrainer` on the same model folder, prompts and reward, a step at a time.

What is timed is everything between the trainer's `on_step_begin` and `on_step_end`: generation,
reward, advantages, loss, backward, clipping, AdamW. Loading the batch of prompts, logging and
checkpoints are outside or off. Settings are facts.md's fair ones; bench.py picks the best of
threads and caches.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import GenerationConfig, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from worker import Port, Reply
from workload import RATE, STYLE, Work

from glasshouse import models as policies
from glasshouse import tasks
from glasshouse.rewards import grade
from glasshouse.types import Problem

MANY_STEPS = 400
"""More than a benchmark takes; the controller hangs up when it has enough."""
NO_TOKEN = -1


class Told(TrainerCallback):
    """Waits before each step for the controller, and reports after it."""

    def __init__(self, port: Port) -> None:
        self.port, self.peer = port, None
        self.asked = port.asked()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.peer.work.spec.ends:  # type: ignore[attr-defined]
            self.peer.never_end()  # type: ignore[attr-defined]

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            self.port.say()
        for what in self.asked:
            if what == "step":
                break
            self.port.say(**self.peer.generate())  # type: ignore[attr-defined]
        else:
            sys.exit(0)
        self.started, self.busy = time.perf_counter(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seconds, cpu = time.perf_counter() - self.started, time.process_time() - self.busy
        rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
        lengths = self.peer.trainer._metrics["train"]["completions/mean_length"]  # type: ignore
        tokens = round(lengths[-1] * rows)
        self.port.say(seconds=seconds, cpu_seconds=cpu, tokens=tokens, rows=rows)


class Peer:
    """TRL's trainer, set up for a piece of work."""

    def __init__(self, work: Work, cache: str, micro: int, told: Told) -> None:
        self.work = work
        self.policy = policy = policies.load(work.model)
        config = work.config(1, policy)
        task = tasks.make(config.task.name, config.task.options)
        ask, rows = work.asking(task), list[dict[str, str]]()
        self.problems: dict[str, Problem] = {}
        for problem in work.stream(config).take(work.problems * MANY_STEPS):
            text, tokens = policy.prompt(ask(problem, STYLE))
            if not rows and tuple(policy.tokenizer(text)["input_ids"]) != tokens:
                raise SystemExit("TRL would not see the tokens that Glasshouse sends.")
            self.problems[problem.key] = problem
            rows.append({"prompt": text, "key": problem.key})
        self.texts = [row["prompt"] for row in rows[: work.problems]]
        completions = work.problems * work.samples
        settings: dict[str, Any] = {
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": "none",
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "per_device_train_batch_size": completions // micro,
            "gradient_accumulation_steps": micro,
            "steps_per_generation": micro,
            "num_generations": work.samples,
            "num_iterations": 1,
            "max_completion_length": work.longest,
            "max_steps": MANY_STEPS,
            "shuffle_dataset": False,
            "learning_rate": RATE,
            "lr_scheduler_type": "constant",
            "weight_decay": 0.0,
            "max_grad_norm": 1.0,
            "beta": 0.0,
            "loss_type": "grpo",
            "scale_rewards": "group",
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "cache_implementation": None if cache == "dynamic" else cache,
            "seed": work.seed,
        }
        self.room = tempfile.TemporaryDirectory(prefix="trl-bench-")
        self.trainer = GRPOTrainer(
            model=policy.model,
            reward_funcs=self.reward,
            args=GRPOConfig(output_dir=self.room.name, **settings),
            train_dataset=Dataset.from_list(rows),
            processing_class=policy.tokenizer,
            callbacks=[told],
        )

    def never_end(self) -> None:
        """Nothing ends a completion, in generate or in the trainer's masks. To be called once
        training has begun: there the Trainer puts the tokenizer's end token back."""
        self.policy.model.generation_config.eos_token_id = None
        self.trainer.generation_config.eos_token_id = None
        self.trainer.generation_kwargs["eos_token_id"] = None
        self.trainer.eos_token_ids = [NO_TOKEN]

    def reward(self, completions: list[str], key: list[str], **_: Any) -> list[float]:
        pairs = zip(completions, key, strict=True)
        return [grade(self.problems[name], text).reward for text, name in pairs]

    @torch.no_grad()
    def generate(self) -> Reply:
        """transformers' `generate` on the first step's prompts, all samples in one batch."""
        model, tokenizer, samples = self.trainer.model, self.policy.tokenizer, self.work.samples
        batch = tokenizer(
            self.texts, padding=True, padding_side="left", add_special_tokens=False,
            return_tensors="pt", return_token_type_ids=False,
        )  # fmt: skip
        inputs = {k: v.repeat_interleave(samples, 0) for k, v in batch.items()}
        how: GenerationConfig = self.trainer.generation_config
        model.eval()
        started = time.perf_counter()
        made = model.generate(**inputs, generation_config=how)[:, inputs["input_ids"].shape[1] :]
        seconds = time.perf_counter() - started
        model.train()
        ended = torch.isin(made, torch.tensor(self.trainer.eos_token_ids)).cumsum(1)
        before = torch.nn.functional.pad(ended, (1, 0))[:, :-1] == 0  # the end token counts too
        return {"seconds": seconds, "tokens": int(before.sum())}


def main() -> None:
    port = Port()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    told = Told(port)
    peer = Peer(Work(**settings["work"]), settings["cache"], settings["micro"], told)
    told.peer = peer  # type: ignore[assignment]
    peer.trainer.train()


if __name__ == "__main__":
    main()
