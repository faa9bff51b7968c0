"""One step: its forwards and backwards, pulls and pushes, and its result.

hooks.py        what happens before and after a unit's forward, and opens and closes it in backward
backward.py     one backward pass: when a unit's gradient is final, and its push
pulls.py        a unit's weights come and go (`units/prefetch.py`: ahead of use)
result.py       what `step()` returns; what a step is clipped by
loss_scale.py   what it is scaled by
"""
