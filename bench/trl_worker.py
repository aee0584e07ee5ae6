"""The TRL side of the benchmark: `GRPOTrainer` on the same model folder, prompts and reward.

A step is everything between the trainer's `on_step_begin` and `on_step_end`: generation, reward,
advantages, loss, backward, clipping, AdamW. Loading prompts is outside it, logging and checkpoints
are off. bench.py reports the best of several thread counts and caches.
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
from worker_process import Port, Reply
from workload import STYLE, Workload

from glasshouse.models.policy import load_policy
from glasshouse.rollout.grading import grade_completion
from glasshouse.tasks.base import make_task
from glasshouse.types import Problem

MAX_STEPS = 400
"""More than a benchmark needs; the controller closes the connection when it is done."""
NO_TOKEN = -1


class StepOnCommand(TrainerCallback):
    """Waits for a command before each step and reports after it."""

    def __init__(self, port: Port) -> None:
        self.port, self.worker = port, None
        self.commands = port.commands()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.worker.work.ends:  # type: ignore[attr-defined]
            self.worker.disable_end_token()  # type: ignore[attr-defined]

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            self.port.reply()
        for command in self.commands:
            if command == "step":
                break
            self.port.reply(**self.worker.generate())  # type: ignore[attr-defined]
        else:
            sys.exit(0)
        self.started, self.cpu_before = time.perf_counter(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seconds, cpu = time.perf_counter() - self.started, time.process_time() - self.cpu_before
        rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
        lengths = self.worker.trainer._metrics["train"]["completions/mean_length"]  # type: ignore
        tokens = round(lengths[-1] * rows)
        self.port.reply(seconds=seconds, cpu_seconds=cpu, tokens=tokens, rows=rows)


class TRLWorker:
    """TRL's trainer, set up for a workload."""

    def __init__(
        self,
        work: Workload,
        cache: str,
        microbatches: int,
        callback: StepOnCommand,
        lora_rank: int = 0,
    ) -> None:
        self.work = work
        self.policy = policy = load_policy(work.model)
        config = work.config(1, policy)
        task = make_task(config.task.name, config.task.options)
        rows = list[dict[str, str]]()
        self.problems: dict[str, Problem] = {}
        for problem in work.problems(config).take(work.groups_per_step * MAX_STEPS):
            text, tokens = policy.encode_prompt(task.messages(problem, STYLE))
            if not rows and tuple(policy.tokenizer(text)["input_ids"]) != tokens:
                raise SystemExit("TRL would tokenize the prompts differently from Glasshouse.")
            self.problems[problem.key] = problem
            rows.append({"prompt": text, "key": problem.key})
        self.texts = [row["prompt"] for row in rows[: work.groups_per_step]]
        completions = work.groups_per_step * work.group_size
        settings: dict[str, Any] = {
            "use_cpu": work.device == "cpu",
            "bf16": work.dtype == "bfloat16",
            "gradient_checkpointing": False,
            "report_to": "none",
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "per_device_train_batch_size": completions // microbatches,
            "gradient_accumulation_steps": microbatches,
            "steps_per_generation": microbatches,
            "num_generations": work.group_size,
            "num_iterations": 1,
            "max_completion_length": work.max_tokens,
            "max_steps": MAX_STEPS,
            "shuffle_dataset": False,
            "learning_rate": work.learning_rate,
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
        self.folder = tempfile.TemporaryDirectory(prefix="trl-bench-")
        self.trainer = GRPOTrainer(
            model=policy.model.to(work.device),
            reward_funcs=self.reward,
            args=GRPOConfig(output_dir=self.folder.name, **settings),
            train_dataset=Dataset.from_list(rows),
            processing_class=policy.tokenizer,
            callbacks=[callback],
            peft_config=make_lora_config(lora_rank) if lora_rank else None,
        )

    def disable_end_token(self) -> None:
        """Lets no token end a completion, in generate and in the trainer's masks. Call it after training
        has begun, since the Trainer then restores the end token of the tokenizer."""
        self.policy.model.generation_config.eos_token_id = None
        self.trainer.generation_config.eos_token_id = None
        self.trainer.generation_kwargs["eos_token_id"] = None
        self.trainer.eos_token_ids = [NO_TOKEN]

    def reward(self, completions: list[str], key: list[str], **_: Any) -> list[float]:
        pairs = zip(completions, key, strict=True)
        return [grade_completion(self.problems[name], text).reward for text, name in pairs]

    @torch.no_grad()
    def generate(self) -> Reply:
        """Runs transformers' `generate` on the prompts of the first step, all samples in one batch."""
        model, tokenizer = self.trainer.model, self.policy.tokenizer
        batch = tokenizer(
            self.texts, padding=True, padding_side="left", add_special_tokens=False,
            return_tensors="pt", return_token_type_ids=False,
        )  # fmt: skip
        inputs = {
            k: v.repeat_interleave(self.work.group_size, 0).to(model.device)
            for k, v in batch.items()
        }
        generation_config: GenerationConfig = self.trainer.generation_config
        model.eval()
        started = time.perf_counter()
        completions = model.generate(**inputs, generation_config=generation_config)[
            :, inputs["input_ids"].shape[1] :
        ]
        seconds = time.perf_counter() - started
        model.train()
        ended = torch.isin(completions.cpu(), torch.tensor(self.trainer.eos_token_ids)).cumsum(1)
        before = torch.nn.functional.pad(ended, (1, 0))[:, :-1] == 0  # including the end token
        return {"seconds": seconds, "tokens": int(before.sum())}


def make_lora_config(rank: int) -> Any:
    """The adapters that Glasshouse adds (`models/adapters.py`)."""
    from peft import LoraConfig

    return LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def main() -> None:
    port = Port()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    callback = StepOnCommand(port)
    settings.pop("threads")
    worker = TRLWorker(Workload(**settings.pop("work")), callback=callback, **settings)
    callback.worker = worker  # type: ignore[assignment]
    worker.trainer.train()


if __name__ == "__main__":
    main()
