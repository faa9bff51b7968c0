"""`transformers.Trainer` over LuWu: `LuwuTrainer`, and the mixin it is made of.

    luwu.init()
    luwu.fully_shard_each(model, LlamaDecoderLayer)
    LuwuTrainer(model, TrainingArguments(..., save_strategy="no", use_cpu=True), ...).train()

Trainer's loop stays as it is. What differs is who does what:

    the model       `fully_shard` has placed it: Accelerate neither moves it nor wraps it in DDP
    the optimizer   `create_optimizer` makes luwu.optim's of the one that was asked for
    clipping        `max_grad_norm` goes to `luwu.clip_grad_norm_`; the norm is known after `step()`
    the ranks       Accelerate starts torch.distributed from RANK and WORLD_SIZE, as ever: it splits
                    the data and gathers losses and metrics. No weight or gradient passes there.
    the state       is on the optimizer node, which is the checkpoint: where it is at a later step
                    (luwu run --resume), Trainer skips the data and the schedule up to there

An argument that cannot be honoured is rejected with the remedy (`_REFUSED`), never ignored.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

import luwu
from luwu.base.errors import ConfigError, StepAborted
from luwu.base.own import needs
from luwu.optim.base import NetworkOptimizer
from luwu.training.script import run
from luwu.training.script.module import LuwuModule
from luwu.training.steps.result import ClippedNorm

try:
    from transformers import Trainer, TrainerState, TrainingArguments
except ImportError as error:
    raise ConfigError(
        "luwu.integrations.transformers needs transformers and accelerate, which are not installed "
        f"here; {needs('hf')}",
        code="E208",
    ) from error

if TYPE_CHECKING:
    from luwu.training.script.session import Session

_OURS = {torch.optim.AdamW: luwu.optim.AdamW, torch.optim.SGD: luwu.optim.SGD}
_OPTIMIZER_NAMES = ("adamw_torch", "adamw_torch_fused", "sgd")
"""Values of `optim` that mean one of them."""

_NO_DDP = "gradients are summed in the network, by no DistributedDataParallel; leave it out"
_OTHER_SHARDING = "luwu.fully_shard has sharded the model already; leave it out"
_CAST = "it would cast the weights, which are in the network; take bf16=True, which is autocast"
_NO_CHECKPOINTS = (
    "a checkpoint of Trainer holds the optimizer's state, which is on the optimizer node with the "
    'weights: the node\'s state directory is the checkpoint; set save_strategy="no", and go on '
    "with luwu run --resume. Weights are written by luwu export, trainer.save_model(), and with "
    "save_only_model=True"
)
_REFUSED = {
    "auto_find_batch_size": "a second try would begin where the first one has pushed gradients; "
    "choose per_device_train_batch_size",
    "bf16_full_eval": _CAST,
    "ddp_broadcast_buffers": _NO_DDP,
    "ddp_bucket_cap_mb": _NO_DDP,
    "ddp_find_unused_parameters": _NO_DDP,
    "ddp_static_graph": _NO_DDP,
    "deepspeed": _OTHER_SHARDING,
    "enable_jit_checkpoint": _NO_CHECKPOINTS,
    "fp16": "its GradScaler looks for infinities in gradients, which are pushed inside backward; "
    "take bf16=True, or mp_policy=MixedPrecisionPolicy(param_dtype=...) of luwu.fully_shard",
    "fp16_full_eval": _CAST,
    "fsdp": _OTHER_SHARDING,
    "load_best_model_at_end": _NO_CHECKPOINTS,
    "parallelism_config": _OTHER_SHARDING,
    "resume_from_checkpoint": _NO_CHECKPOINTS,
    "save_on_each_node": "rank 0 alone reads the weights, and saves them; leave it out",
    "torch_compile": "the compiler would wrap the model around the hooks that pull weights; leave "
    "it out",
    "use_liger_kernel": "it would change modules after luwu.fully_shard; patch the model before, "
    "and leave it out",
}
"""Training arguments that cannot be honoured unless they are off, and what to do."""


class LuwuTrainerMixin:
    """Put it before `Trainer` or a class derived from it: `class T(LuwuTrainerMixin, Trainer)`."""

    if TYPE_CHECKING:  # of Trainer
        accelerator: Any
        args: TrainingArguments
        model: Any
        lr_scheduler: Any
        optimizer: Any
        processing_class: Any
        push_to_hub: Any
        state: Any

    def __init__(self, model: Any = None, args: Any = None, *rest: Any, **arguments: Any) -> None:
        """Trainer's arguments; the model is one that `luwu.fully_shard` was called on.

        Raises: ConfigError for what cannot be honoured, with what to do instead.
        """
        if arguments.get("model_init") is not None:
            raise ConfigError(
                "model_init makes models inside of Trainer, where nothing shards them; make the "
                "model, call luwu.fully_shard on it, and pass it as model="
            )
        if not isinstance(model, LuwuModule):
            raise ConfigError(
                f"LuwuTrainer got a {type(model).__name__} whose weights are not in the network; "
                "call luwu.fully_shard on its blocks and on itself before"
            )
        if args is None:
            raise ConfigError(
                "LuwuTrainer without args would save checkpoints, as Trainer does by default; pass "
                'TrainingArguments(..., save_strategy="no")'
            )
        _check_arguments(args)
        super().__init__(model, args, *rest, **arguments)  # type: ignore[call-arg]
        self._check_processes()
        self._first_step = 0
        """First step of the next `train`, from the state, once."""
        if self.optimizer is not None:
            self._take_optimizer(self.optimizer)

    # ---------------------------------------------------------------- the model stays where it is

    def create_accelerator_and_postprocess(self) -> None:
        """As Trainer's; what Accelerate prepares gets autocast, and is not moved or wrapped.

        The optimizer too stays where it is: its state is on the node.
        """
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        prepare_model = self.accelerator.prepare_model
        prepare_optimizer = self.accelerator.prepare_optimizer

        self.accelerator.prepare_model = lambda model, *_, **__: prepare_model(
            model, device_placement=False, evaluation_mode=True
        )
        self.accelerator.prepare_optimizer = lambda optimizer, *_, **__: prepare_optimizer(
            optimizer, device_placement=False
        )
        if self.accelerator.distributed_type in ("DEEPSPEED", "FSDP", "MEGATRON_LM"):
            raise ConfigError(
                f"Accelerate is configured for {self.accelerator.distributed_type.value}, by a "
                "file of `accelerate config` or by ACCELERATE_* in the environment; "
                + _OTHER_SHARDING
            )

    def _move_model_to_device(self, model: Any, device: torch.device) -> None:
        """Nothing moves: `fully_shard` has placed the model where `luwu.init` chose."""

    def _check_processes(self) -> None:
        session, accelerator = self._session, self.accelerator
        found = (accelerator.num_processes, accelerator.process_index)
        if found != (session.world_size, session.rank):
            raise ConfigError(
                f"Accelerate sees {found[0]} processes and takes this one for number {found[1]}, "
                f"but it is worker {session.rank} of {session.world_size}, so the data would not "
                "be split; start the script with luwu run or torchrun, and on CPUs pass "
                "TrainingArguments(use_cpu=True), without which Accelerate starts no group there"
            )
        shared = run.gpus_shared(session.device)
        if shared is not None and torch.distributed.get_backend() == "nccl":
            raise ConfigError(
                f"{shared[1]} workers share {shared[0]} GPUs here, of which NCCL takes one rank "
                'each; pass TrainingArguments(ddp_backend="gloo"): Accelerate gathers losses and '
                "metrics by it, while weights and gradients take another way"
            )
        if accelerator.device.type != session.device.type or self.args.n_gpu > 1:
            raise ConfigError(
                f"Trainer computes on {accelerator.device} ({self.args.n_gpu} GPUs), but the "
                f"weights come to {session.device}; TrainingArguments(use_cpu=...) and "
                "luwu.init(device=...) must say the same, with one GPU a worker"
            )

    # ---------------------------------------------------------------- the optimizer

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Trainer's groups, with luwu.optim's counterpart of the optimizer that was asked for."""
        if self.optimizer is not None:
            return super().create_optimizer(model)  # type: ignore[misc]
        made: NetworkOptimizer = super().create_optimizer(model)  # type: ignore[misc]
        self._take_optimizer(made)
        return made

    def _take_optimizer(self, optimizer: Any) -> None:
        if not isinstance(optimizer, NetworkOptimizer):
            raise ConfigError(
                f"LuwuTrainer got a {type(optimizer).__name__}, which would update nothing: the "
                "weights are in the network; make one of luwu.optim"
            )
        self._first_step = optimizer.next_step

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:
        """luwu.optim's class for `args.optim`, and its arguments."""
        if args.optim not in _OPTIMIZER_NAMES:
            raise ConfigError(
                f"optim={str(getattr(args.optim, 'value', args.optim))!r} is not among what the "
                f"optimizer node computes: {', '.join(_OPTIMIZER_NAMES)}; for another of "
                "luwu.optim pass optimizer_cls_and_kwargs=(luwu.optim.Lion, {'lr': ...})"
            )
        theirs, arguments = Trainer.get_optimizer_cls_and_kwargs(args, model)
        arguments.pop("fused", None)  # the node's update is
        return _OURS[theirs], arguments

    # ---------------------------------------------------------------- where training begins

    def train(self, resume_from_checkpoint: Any = None, *rest: Any, **arguments: Any) -> Any:
        """Trainer's `train`, from the step where the state is.

        Raises: StepAborted if a step was lost.
        """
        if resume_from_checkpoint:
            raise ConfigError(f"resume_from_checkpoint: {_NO_CHECKPOINTS}")
        if self.optimizer is None:
            self.create_optimizer()  # joins the job, which tells the step
        first, self._first_step = self._first_step, 0
        try:
            with self._checkpoint_at(first) as checkpoint:
                return super().train(checkpoint, *rest, **arguments)  # type: ignore[misc]
        except StepAborted as error:
            error.add_note(
                "Trainer's loop cannot go back to a step. Start the run again with --resume, or "
                "train with a loop of your own, which can: see docs/huggingface.md"
            )
            raise

    @contextmanager
    def _checkpoint_at(self, step: int) -> Iterator[str | None]:
        """A checkpoint directory with nothing in it but the number of the step; None for 0."""
        if step == 0:
            yield None
            return
        state = TrainerState(global_step=step, train_batch_size=self.args.train_batch_size)
        state.compute_steps(self.args, self.args.max_steps)
        with tempfile.TemporaryDirectory() as directory:
            state.save_to_json(os.path.join(directory, "trainer_state.json"))
            yield directory

    def _load_from_checkpoint(self, *_: Any, **__: Any) -> None:
        """Nothing: the weights are on the optimizer node."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """The optimizer's state is on its node; the schedule goes to its step."""
        if checkpoint is None:
            return
        if isinstance(self.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ConfigError(
                f"the state is at step {self.state.global_step}, but this schedule depends on what "
                "was measured before it; take another lr_scheduler_type, or a fresh --state"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # steps without one of the optimizer
            for _ in range(self.state.global_step):
                self.lr_scheduler.step()

    # ---------------------------------------------------------------- clipping

    def _clip_grad_norm(self, model: Any) -> ClippedNorm:
        return luwu.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_grad_norm(self, model: Any, grad_norm: ClippedNorm | None = None) -> None:
        """Nothing yet: the norm is known after `step()`, where `log` reads it."""

    def log(self, logs: dict[str, float], *rest: Any, **arguments: Any) -> None:
        """Trainer's `log`, with the norm of the last step beside its learning rate."""
        result = self._session.results.last
        if "learning_rate" in logs and result is not None:
            logs["grad_norm"] = result.grad_norm
        super().log(logs, *rest, **arguments)  # type: ignore[misc]

    # ---------------------------------------------------------------- evaluation and saving

    def evaluation_loop(self, *rest: Any, **arguments: Any) -> Any:
        """Trainer's; the weights can be pulled once there is an optimizer, so it is made first."""
        if self.optimizer is None:
            self.create_optimizer()
        return super().evaluation_loop(*rest, **arguments)  # type: ignore[misc]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the decided weights as `save_pretrained` does; every rank may call it."""
        weights = luwu.get_model_state_dict(self.model)
        directory = self.args.output_dir if output_dir is None else output_dir
        if self.args.should_save:
            assert directory is not None
            os.makedirs(directory, exist_ok=True)
            self.model.save_pretrained(directory, state_dict=weights)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(directory)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    @property
    def _session(self) -> Session:
        session: Session = self.model.luwu_session
        return session


class LuwuTrainer(LuwuTrainerMixin, Trainer):
    """`transformers.Trainer`, trained in the network."""


def _check_arguments(args: Any) -> None:
    refused = {name: (getattr(args, name, None), reason) for name, reason in _REFUSED.items()}
    saving = getattr(args.save_strategy, "value", args.save_strategy)  # of an enumeration
    if saving != "no" and not args.save_only_model:
        refused["save_strategy"] = (saving, _NO_CHECKPOINTS)
    for name, (value, reason) in refused.items():
        if value:
            raise ConfigError(f"TrainingArguments({name}={value!r}) cannot be honoured: {reason}")
