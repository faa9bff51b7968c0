"""The functions that a training script calls, and the session behind them.

session.py       one worker's training: its parts, and what is done to all of them
optimizers.py    the optimizers of a session, as one of its job
run.py           init, finish and the current session
fully_shard.py   which parameters form a unit
module.py        what `fully_shard` adds to a module: FSDP2's methods
first.py         init_weights, load_pretrained
kept.py          attach, stats
log.py           log: numbers of a step, for status, report and TensorBoard
clipping.py      clip_grad_norm_
batches.py       ranks with unequal batches, or none
elastic_sampler.py  samples of a job whose workers come and go
"""
