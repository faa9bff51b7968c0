"""The functions that a training script calls, and the session behind them.

session.py       one worker's training: its parts, and what is done to all of them
optimizers.py    the optimizers of a session, as one of its job
run.py           init, finish and the current session
fully_shard.py   which parameters form a unit
module.py        what `fully_shard` adds to a module: FSDP2's methods
state_calls.py   init_weights, load_pretrained, attach
step_calls.py    log, clip_grad_norm_, set_gradient_weight, empty_backward
elastic_sampler.py  samples of a job whose workers come and go
"""
