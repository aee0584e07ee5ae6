"""Reports: what people read about runs and studies.

`run_page` writes the page of `glasshouse view` into a file, `study_page` the page of a study,
`study_markdown` the published page of a study. `learning_curves`, `figures` and `study_figures` draw,
and the other modules print to the terminal.
"""
