"""Everything that knows torch modules: `fully_shard`, its hooks, first weights, state dicts.

run.py           init, finish and the current session: what a script calls
fully_shard.py   which parameters form a unit; they become placeholders (`placeholder.py`;
                 `stand_in.py`: what stands where no value is)
model.py         the layout of the whole model, made when the optimizer is constructed
module.py        what `fully_shard` adds to a module: FSDP2's methods
first_weights.py where first weights come from (`initialise.py`: made; `pretrained.py`: files)
session.py       one worker's training: steps, aborts, and what is pulled now
hooks.py         what happens before and after a unit's forward and backward
backward.py      one backward pass: when a unit's gradient is final, and its push
unit.py          a unit's parameters between pull and free (`weights.py`: their storage)
device.py        between host memory of the network and the device: nothing on CPUs; on GPUs
                 `streams.py`, `pinning.py`, `ring.py`, `turns.py`, `device_weights.py`
prefetch.py      pulls ahead of use, in the order of the last step
gradients.py     gradients as flat vectors, in a bounded number of buffers
batches.py       ranks with unequal batches, or none          clip.py        clipping
loss_scale.py    float16: the scale of each step             statistics.py  norms per parameter
attached.py      what only workers hold, kept with every step
state_dict.py    state dicts, in the shape of torch.distributed.checkpoint
offload.py       activations out of core (`saved_tensors.py`: which, and how they come back)
storages.py      which storages hold weights
read_from.py     a plain model that computes with a decided step, and never trains: its units
                 (`read_units.py`), buffers (`read_buffers.py`) and thread (`reading_thread.py`)
"""
