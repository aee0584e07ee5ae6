"""The configuration: every key with its type, default and description.

schema.py      the sections and keys
loading.py     a `Config` from files and overrides, and back to YAML, dotted keys or a difference
yaml_files.py  reads and writes YAML 1.2, with limits: no aliases, repeated keys or deep nesting
"""
