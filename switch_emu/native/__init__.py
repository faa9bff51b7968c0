"""Compiled arithmetic of switch and node: one C file, one library, built at the start of a process.

arithmetic.c   sums, squares, optimizers and casts, in one pass over memory
build.py       compiles it once, with the machine's own compiler, and loads it
fold.py        calls of it: sums of contributions, products of matrices

Its user compares its bits with the portable way once after a build (`check_once`), and goes
on without it if there is no compiler: `switch_emu.node.kernels` for updates,
`switch_emu.switch.adding` for sums.
"""
