"""REINFORCE on digit tasks with parallel generators: flags for the training loop of all experiments.

    python experiments/reinforcement_learning/main.py --task sum_digits --num-steps 20

At each step every generator produces its trajectories, the trainer takes one policy-gradient step on
the batch (length-normalised log-probability times reward, +1 if correct, -1 otherwise), and the
generators receive the new weights. Trainer and generators are Monarch actors in separate processes;
docs/scale.md explains how they work together.

The system prompt contains a worked example and asks for steps (`glasshouse tasks sum_digits` shows what
the model reads).
"""

from __future__ import annotations

import argparse
import sys

from glasshouse.cli.app import run_command


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="main.py",
        description="Train a language model with REINFORCE; evaluate it before and after.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--task",
        choices=["sum_digits", "reverse_digits"],
        default="sum_digits",
        help="task to train on",
    )
    parser.add_argument(
        "--num-steps", type=positive_integer, default=20, help="number of training steps"
    )
    parser.add_argument(
        "--num-generators", type=positive_integer, default=2, help="number of generator processes"
    )
    parser.add_argument(
        "--eval-samples", type=positive_integer, default=20, help="number of evaluation samples"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print sample generations on each step"
    )
    parser.add_argument(
        "--model", default="pocket", help="pocket, a model folder, or a Hugging Face hub name"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument(
        "--trajectories-per-generator", type=positive_integer, default=1,
        help="trajectories per generator and step; more give a less noisy gradient",
    )  # fmt: skip
    args = parser.parse_args()
    return run_command(lambda: train(args))


def train(args: argparse.Namespace) -> int:
    print("importing PyTorch …", flush=True)
    from glasshouse.config.loading import load_config
    from glasshouse.training.display import TerminalDisplay
    from glasshouse.training.run import TrainingRun

    resolved = load_config([], [
        f"model={args.model}",
        f"seed={args.seed}",
        f"steps={args.num_steps}",
        f"task.name={args.task}",
        "backend=monarch",
        f"monarch.generators={args.num_generators}",
        f"data.groups_per_step={args.num_generators * args.trajectories_per_generator}",
        "generate.group_size=1",
        f"generate.chunk_size={args.trajectories_per_generator}",
        "learn.algorithm=reinforce",
        f"evaluate.problems={args.eval_samples}",
    ])  # fmt: skip
    summary = TrainingRun(resolved, TerminalDisplay(verbose=args.verbose)).train()
    return 130 if "interrupted_at" in summary else 0


def positive_integer(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
