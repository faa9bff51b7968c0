"""Programs that train: one script for every arm, and the built-in GPT and its data.

train.py         the script that trains a small GPT, for every arm
options.py       its options
arms.py          what all arms have in common, and those of LuWu
baselines.py     the arms that torch brings: FSDP2 and DDP
gpt.py           a small GPT
data.py          tokens and batches, a pure function of seed and step
data_file.py     checks of `--data` without torch
pace.py          slower compute, for emulation
"""
