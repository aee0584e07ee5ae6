"""GRPO on word problems with a hint in words, Qwen2.5-Coder-0.5B-Instruct as it is.

python training/hint.qwen/train.py model=FOLDER                      # outcome reward
python training/hint.qwen/train.py model=FOLDER reward.shuffle=true  # its control
glasshouse study training/hint.qwen/study.yaml                       # both, three seeds
"""

from glasshouse import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
