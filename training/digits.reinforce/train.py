"""REINFORCE on the digit tasks `sum_digits` and `reverse_digits`.

python training/digits.reinforce/train.py
python training/digits.reinforce/train.py task.name=reverse_digits
python training/digits.reinforce/train.py backend=monarch monarch.generators=4
glasshouse study training/digits.reinforce/study.yaml        # both tasks and their controls, 7 seeds
"""

from glasshouse import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
