"""Figures as curves: how memory, starts, idle processor time and latencies grow with the size of a cluster.

Each curve has a module and a bench, `growth_…`; the name `growth` runs all of them.  A result has one row for each
size, the sizes that do not fit (`skipped`), and `bound`: what limits the curve, and the limit behind it.  Bounds come
from the code; a measured one is added to the constant BOUND of the module once it is known.
"""
