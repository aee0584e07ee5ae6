"""The configuration: every key with its type, default and description.

schema.py      the sections and keys
loading.py     a `Config` from files and overrides; an error names the key and suggests the nearest
yaml_files.py  reads and writes YAML 1.2, with limits: no aliases, repeated keys or deep nesting
rendering.py   a `Config` as YAML, as dotted keys, as a difference
"""
