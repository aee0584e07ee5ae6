"""A supervised warm start for any model: `glasshouse sft`.

recipes.py  the demonstrations: a built-in recipe of the pocket models, or a YAML file
trainer.py  trains on them, resumes, and writes a model folder
card.py     its model card
"""
