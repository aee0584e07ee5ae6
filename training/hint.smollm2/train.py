"""GRPO on word problems with a hint in words, SmolLM2-135M after supervised training on several ways to answer.

glasshouse sft smollm2 --recipe training/hint.smollm2/base-0.yaml --out models/hint-smollm2-0 steps=180
python training/hint.smollm2/train.py                                    # outcome reward
python training/hint.smollm2/train.py reward.penalties.monitor.weight=1  # and a penalty on mentioning the hint
glasshouse study training/hint.smollm2/study.yaml                        # arms × seeds × two bases
"""

from glasshouse import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
