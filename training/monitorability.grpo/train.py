"""Does RL make the chain of thought (CoT) harder to monitor, and under which pressure?

    python training/monitorability.grpo/train.py                                            # outcome reward only
    python training/monitorability.grpo/train.py reward.penalties='{monitor: {weight: 0.3}}'  # monitor penalty
    python training/monitorability.grpo/train.py task.name=grader_bug model=grader-bug-0 \\
        reward.terms='{last_digit: 1}' reward.penalties='{length: {weight: 1}}'             # another organism
    glasshouse study training/monitorability.grpo/study.yaml                                # all pressures, 8 seeds

The model adds digits, and some prompts leak a hint at the answer. In evaluation the hint is wrong, so
an answer that follows it was caused by it. A monitor that reads the CoT may or may not detect this.
docs/tasks.md describes the other organisms, docs/monitorability.md the measures.
"""

from glasshouse import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
