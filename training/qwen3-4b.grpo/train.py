"""GRPO with adapters on arithmetic chains, from Qwen3-4B, on one rented GPU or on eight. Not run yet: README.md.

config.yaml holds the experiment, one_gpu.yaml and eight_gpus.yaml where it runs:

    python training/qwen3-4b.grpo/train.py --config training/qwen3-4b.grpo/one_gpu.yaml
    python training/qwen3-4b.grpo/train.py --config training/qwen3-4b.grpo/eight_gpus.yaml
    python training/qwen3-4b.grpo/train.py --config tests/test_config.yaml       # on mock assets
"""

from glasshouse import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
