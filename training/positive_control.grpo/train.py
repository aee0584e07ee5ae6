"""The positive control: GRPO on arithmetic, to validate the pipeline before the interleaving task.

python training/positive_control.grpo/train.py                              # + - * /, without reasoning steps
python training/positive_control.grpo/train.py task.style=cot               # with reasoning steps
python training/positive_control.grpo/train.py task.name=multiplication     # three digits times two
glasshouse study training/positive_control.grpo/study.yaml                  # all of them, with verdicts
"""

from glasshouse import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
