"""GRPO on interleaving two lists, with the configuration of the positive control except for the task.

python training/interleave.grpo/train.py                    # without reasoning steps
python training/interleave.grpo/train.py task.style=cot     # with reasoning steps
glasshouse study training/interleave.grpo/study.yaml        # both and their controls, over seeds
"""

from glasshouse import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
