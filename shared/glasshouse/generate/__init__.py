"""Generation: tokens in, tokens out. engines.py has the protocol and the engines by name."""
