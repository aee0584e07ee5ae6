"""The embedded default: a pocket-sized base model that knows good and bad ways to answer.

`recipe` says what a model is shown (`recipes` and `organisms` hold them), `build` trains it,
`measure` writes its card; the committed weights lie in `model/` and `bases/`. `glasshouse pocket
build` makes them again.
"""
