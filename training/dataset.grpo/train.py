"""GRPO on the problems of a file, with a real pretrained model. See README.md.

python training/dataset.grpo/train.py
python training/dataset.grpo/train.py task.options.file=mine.jsonl
"""

from glasshouse import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
