"""GRPO on one-operation arithmetic with real pretrained models: SmolLM2-135M-Instruct, or Gemma 3 270M with LoRA.

python training/smollm2.grpo/train.py                                             # SmolLM2, all weights
python training/smollm2.grpo/train.py --config training/smollm2.grpo/gemma3.yaml  # Gemma 3, LoRA
glasshouse study training/smollm2.grpo/study.yaml                                 # with its control, over seeds
"""

from glasshouse import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
