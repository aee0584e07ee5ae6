"""The configuration: every key with its type, default and description.

schema.py      the sections and keys
loading.py     a `Config` from YAML files and overrides, and back to YAML, dotted keys or a difference
"""
