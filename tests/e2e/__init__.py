"""Whole stacks of real processes, called as users call them."""
