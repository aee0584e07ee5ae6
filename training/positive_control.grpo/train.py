"""The positive control: GRPO on products and on arithmetic, to validate the pipeline before the interleaving task.

python training/positive_control.grpo/train.py                                        # three digits times two, no steps
python training/positive_control.grpo/train.py model=positive-control task.style=cot  # with reasoning steps
python training/positive_control.grpo/train.py --config training/positive_control.grpo/arithmetic.yaml  # + - * /
glasshouse study training/positive_control.grpo/study_products.yaml                   # the default, with verdicts
"""

from glasshouse import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
