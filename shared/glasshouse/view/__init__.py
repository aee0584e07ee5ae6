"""The live page, the report of a run, figures and tables of runs. Imports no torch."""
