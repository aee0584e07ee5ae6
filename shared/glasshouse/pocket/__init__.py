"""The pocket models: small base models that ship with the package.

recipe.py         what a recipe is: a mixture of demonstrations per training phase
recipes.py        all recipes by name, and the pocket model's own; the others are in *_recipes.py,
                  positive_control.py and product_recipe.py
build.py          trains a base model from a recipe
measure.py        measures it and writes its model card
build_command.py  `glasshouse pocket build`: both, with progress

The committed weights are in `model/` and `bases/`.
"""
