"""The page update in one pass: sum, squares, division, clip, optimizer and cast, in two versions.

interface.py   what a kernel does, and the order in which it adds
portable.py    blocks of torch's fused kernels; works everywhere; Muon, of a matrix as a whole
narrow.py      what is stored in fewer bits than float32, and its rounding
compiled.py    the same bits from `switch_emu.native`, compiled at the node's start
selfcheck.py   compares the two
make.py        chooses, after one comparison for each torch and processor, and says why
updates.py     the updates that there are, one record each
"""

from switch_emu.node.kernels.interface import Arrays, Made, Run, UpdateCall, UpdateKernel
from switch_emu.node.kernels.updates import kernel_name

__all__ = ["Arrays", "Made", "Run", "UpdateCall", "UpdateKernel", "kernel_name"]
