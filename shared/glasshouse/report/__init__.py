"""Reports: what people read about runs and studies.

`run_page` and `study_page` write HTML, `study_markdown` the published page of a study,
`learning_curves`, `figures` and `study_figures` draw, and the other modules print to the terminal.
"""
