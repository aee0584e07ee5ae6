"""Training: the loop (loop.py) and what surrounds it, supervised training, planning of memory."""
