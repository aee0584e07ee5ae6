"""Studies: arms × seeds, frozen files, tables, verdicts; the demo is one."""
