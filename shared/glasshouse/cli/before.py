"""`glasshouse audit-reward` and `predict`: what to know about a reward and a model before training."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glasshouse.cli.measure import MONITORS, parse_monitors
from glasshouse.cli.parser import CONFIG, IMPORTS, JSON, command, print_json, print_safe
from glasshouse.terminal import make_console, show_status


@command(
    "audit-reward",
    "find which terms of a reward read the chain of thought, before training",
    {
        "ROLLOUTS?": "whatever `glasshouse measure` reads, or a run directory (default: sampled from model=…)",
        "--reward MODULE:FUNCTION...": "a reward function as TRL calls it, also file.py:function or "
        "module:factory(n=1); repeatable (default: the reward of the configuration or the run)",
        "--outcome-only TERM...": "a term that must not read the CoT; repeatable; exit code 1 if it does",
        "--map FIELD=COLUMN...": {
            "nargs": "+",
            "action": "extend",
            "help": "which column holds a field, as for `glasshouse measure`",
        },
        "--column NAME=COLUMN...": "pass a column of the rollouts to the function under this name; repeatable",
        "--sentence TEXT": "the disclosing sentence to insert; {answer} in it is the answer",
        "--rollouts N = 300": {"dest": "limit", "help": "use the first N rollouts that have a CoT"},
        "--allow-network": "let the reward function connect to other machines",
        **JSON,
        **CONFIG,
        **IMPORTS,
        "key=value": "the reward to audit, as in reward.penalties.length.weight=1",
    },
    "Keeps the answer of each rollout and deletes, shortens, swaps, pads or rewords its CoT, or inserts a disclosing "
    "sentence; then keeps the CoT and changes the answer. Prints by how much each term moves, whether hiding pays, and "
    "two examples. A term that is random or keeps state is found, since two calls on the same rollout differ. No torch "
    "for given rollouts. Exit code 1 if a term that was declared outcome-only reads the CoT.",
    examples=[
        "glasshouse audit-reward runs/try",
        "glasshouse audit-reward rollouts.jsonl --reward rewards.py:accuracy --outcome-only accuracy",
        "glasshouse audit-reward model=leaked-hint-0 task.name=leaked_hint reward.penalties.monitor.weight=1",
    ],
)
def _audit_reward(args: argparse.Namespace) -> int:
    from glasshouse.before_training.audit import audit_reward
    from glasshouse.before_training.tables import print_audit
    from glasshouse.config.loading import load_config

    config = None
    if args.config or args.overrides or not (args.rollouts or args.reward):
        config = load_config(args.config, args.overrides)
    console = make_console(stderr=args.json)
    rollouts = args.rollouts
    if not rollouts:
        from glasshouse.before_training.base import sample

        config = config or load_config()
        rollouts = sample(config, console, rollouts=args.limit)[0]
    with show_status(console) as show:
        audit = audit_reward(
            rollouts,
            config,
            rewards=args.reward,
            map=args.map or (),
            columns=args.column,
            outcome_only=args.outcome_only,
            sentence=args.sentence,
            limit=args.limit,
            allow_network=args.allow_network,
            on_progress=lambda share: show(f"editing and scoring, {share:.0%}"),
        )
    if args.json:
        print_json(audit.as_dict())
    else:
        print_audit(console, audit)
    return int(bool(audit.violations))


@command(
    "predict",
    "predict whether RL will hide, remove or show a behaviour, before training",
    {
        "ROLLOUTS?": "a run directory (its first evaluation), or rollouts with a label or a hint and a reward "
        "(default: sampled from model=…)",
        "--problems N = 250": "held-out problems to sample",
        "--samples N = 8": "completions of each problem and arm",
        "--weight X...": {
            "type": float,
            "action": "append",
            "help": "a weight λ of the penalty to predict for; repeatable (default: 0 .03 .1 .3 1)",
        },
        "--map FIELD=COLUMN...": {
            "nargs": "+",
            "action": "extend",
            "help": "which column holds a field, as for `glasshouse measure`",
        },
        **MONITORS,
        "--out FOLDER": "write prediction.json and prediction.svg here; the page of a run shows those in its directory "
        "(default for a run: its directory)",
        **JSON,
        **CONFIG,
        **IMPORTS,
        "key=value": "model, task and reward of the training, as in reward.penalties.monitor.weight=0.3",
    },
    "Sorts rollouts of the base into honest work, disclosed use and silent use, and computes the mean reward of each "
    "mode under the configured reward. M is the reward of silent minus that of honest rollouts: where a penalty makes "
    "disclosing expensive, M > 0 says that RL will hide the behaviour, M < 0 that it will remove it. A replicator "
    "(GRPO on the modes) adds the way there. The verdict is hide, remove, show or cannot tell.",
    examples=[
        "glasshouse predict model=leaked-hint-10 task.name=leaked_hint reward.penalties.monitor.weight=1 steps=80",
        "glasshouse predict runs/try",
        "glasshouse predict rollouts.jsonl --map label=hacked --monitor 'rule:says=(?i)test case'",
    ],
)
def _predict(args: argparse.Namespace) -> None:
    from glasshouse.before_training.base import read_base
    from glasshouse.before_training.picture import draw_prediction
    from glasshouse.before_training.predict import WEIGHTS, predict
    from glasshouse.before_training.tables import print_prediction
    from glasshouse.config.loading import load_config
    from glasshouse.files import check_output_folder, write_json, write_text
    from glasshouse.runs.run_directory import is_run_directory

    if args.out:
        check_output_folder("--out", Path(args.out))
    console = make_console(stderr=args.json)
    config: Any = None
    if args.config or args.overrides or not args.rollouts:
        config = load_config(args.config, args.overrides)
    monitors = parse_monitors(args, Path(args.out or ".glasshouse") / "judge")
    base = read_base(
        args.rollouts or config,
        config,
        map=args.map or (),
        monitors=monitors,
        problems=args.problems,
        samples=args.samples,
        console=console,
    )
    with show_status(console) as show:
        show("predicting")
        prediction = predict(base, weights=args.weight or WEIGHTS)
    out = Path(args.out) if args.out else None
    if out is None and args.rollouts and is_run_directory(Path(args.rollouts)):
        out = Path(args.rollouts)
    if args.json:
        print_json(prediction.as_dict())
    else:
        print_prediction(console, prediction)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "prediction.json", prediction.as_dict())
        write_text(out / "prediction.svg", draw_prediction(prediction))
        if not args.json:
            print_safe(f"files   {out}  (prediction.json, prediction.svg)")
