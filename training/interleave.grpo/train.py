"""The task that the positive control was for: two lists interleaved.

    python training/interleave.grpo/train.py                    # without steps
    python training/interleave.grpo/train.py task.style=cot     # with steps
    glasshouse study training/interleave.grpo/study.yaml        # both, over seeds, with the controls

Its configuration is the positive control's but for the task.
"""

from glasshouse.cli import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
