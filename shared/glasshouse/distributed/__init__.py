"""Where generation and learning run: this process, Monarch actors on this host, several hosts.

Nothing is imported here: a host that only waits for work does not need torch.
"""
