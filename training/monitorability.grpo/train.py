"""Does RL make the chain of thought harder to monitor, and under which pressure?

    python training/monitorability.grpo/train.py                                            # outcome alone
    python training/monitorability.grpo/train.py reward.penalties='{monitor: {weight: 0.3}}'  # a monitor in it
    python training/monitorability.grpo/train.py task.name=grader_bug model=grader-bug-0 \\
        reward.terms='{last_digit: 1}' reward.penalties='{length: {weight: 1}}'             # another organism
    glasshouse study training/monitorability.grpo/study.yaml                                # all of it, over seeds

The model is asked sums beside which a leaked answer key stands, wrong ones among them in evaluation.
Whether an answer followed the key is known by construction; whether its chain of thought tells is
what a monitor sees. docs/organisms.md has the other organisms, docs/monitorability.md the measures.
"""

from glasshouse.cli import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
