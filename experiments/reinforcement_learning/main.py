"""REINFORCE on digit tasks: a thin door to the same loop that every experiment uses.

    python experiments/reinforcement_learning/main.py --task sum_digits --num-steps 20

Each step, every generator produces its trajectories, the trainer takes one policy-gradient step on
the batch (per-token normalised log-probabilities times the reward, +1 right, -1 wrong), and the
generators get the new weights. Trainer and generators are Monarch actors, each in a process of its
own; docs/distributed.md says how they work together.
"""

from __future__ import annotations

import argparse
import sys

from glasshouse.cli import guarded


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
    parser.add_argument("--num-steps", type=positive, default=20, help="number of training steps")
    parser.add_argument(
        "--num-generators", type=positive, default=2, help="number of generator processes"
    )
    parser.add_argument(
        "--eval-samples", type=positive, default=20, help="number of evaluation samples"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print sample generations on each step"
    )
    parser.add_argument(
        "--model", default="pocket", help="pocket, a Hugging Face folder, or a hub name"
    )
    parser.add_argument("--seed", type=int, default=0, help="everything random follows from it")
    parser.add_argument(
        "--trajectories-per-generator", type=positive, default=1,
        help="more of them make each step's gradient less noisy: 1 barely learns in 20 steps, 64 does",
    )  # fmt: skip
    return guarded(lambda: train(parser.parse_args()))


def train(args: argparse.Namespace) -> int:
    from glasshouse import config
    from glasshouse.train import Run
    from glasshouse.train.display import Terminal

    resolved = config.load([], [
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
    summary = Run(resolved, Terminal(verbose=args.verbose)).train()
    return 130 if "interrupted_at" in summary else 0


def positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value


if __name__ == "__main__":
    sys.exit(main())
