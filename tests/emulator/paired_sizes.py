"""Threads that are paired with every other choice, fewer than there are: pairs are many."""

SIZES = (1, 32, 64, 96, 128, 160, 256, 512, 1024)
IN_PAIRS = {"threads": SIZES, "threads_per_row": (2, 4, 8, 16, *SIZES)}
