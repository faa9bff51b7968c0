"""State beyond one step: first weights, and what only workers hold.

sources.py         sources of first weights that the script named (`pretrained.py`: files)
initialise.py      first weights made, one unit at a time; buffers on `meta`
first_weights.py   when first weights are sent, and when they leave this process
attached.py        what only workers hold, kept with every step
"""
