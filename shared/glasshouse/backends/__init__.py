"""Backends: where generation and learning run: this process, Monarch actors on one host, or several hosts."""
