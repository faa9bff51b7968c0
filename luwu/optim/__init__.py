"""The optimizers a training script constructs; the update itself runs on the optimizer node.

Same names, arguments and defaults as in `torch.optim` (which has no Lion), whose `Optimizer` they
derive from, so that learning rate schedulers and parameter groups work. `NetworkOptimizer` is what
an optimizer of one's own derives from (docs/optimizers.md).
"""

from luwu.optim.adam import Adam
from luwu.optim.adamw import AdamW
from luwu.optim.base import NetworkArguments, NetworkOptimizer
from luwu.optim.lion import Lion
from luwu.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Lion", "NetworkArguments", "NetworkOptimizer"]
