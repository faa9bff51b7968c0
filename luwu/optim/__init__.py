"""The optimizers a training script constructs; the update itself runs on the optimizer node.

Same names, arguments and defaults as in `torch.optim` (which has no Lion), whose `Optimizer` they
derive from, so that learning rate schedulers and parameter groups work. `NetworkOptimizer` is what
an optimizer of one's own derives from (docs/optimizers.md).

app_state.py   a model and its optimizer as one object, for distributed checkpoints
base.py        what all of them share: groups go out, steps come back
algorithms.py  Adam, AdamW, Lion, Muon, SGD
averages.py    averages of the weights: `luwu.ema`, `luwu.swa`
state_dict.py  state dicts of a model in the network and of its optimizer

Examples:
    >>> session = luwu.init_local()
    >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
    >>> optimizer = luwu.optim.Adam(model.parameters(), lr=1e-3)
    >>> scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    >>> model(torch.ones(8, 4)).square().mean().backward()
    >>> result = optimizer.step()
    >>> scheduler.step()
    >>> scheduler.get_last_lr()
    [0.0009000000000000001]
"""

from luwu.optim.algorithms import SGD, Adam, AdamW, Lion, Muon
from luwu.optim.base import NetworkArguments, NetworkOptimizer

__all__ = ["SGD", "Adam", "AdamW", "Lion", "Muon", "NetworkArguments", "NetworkOptimizer"]
