"""State that only workers hold, kept with every step: schedulers, cursors, random numbers, buffers.

    luwu.attach("scheduler", scheduler)              with the groups of its optimizer
    luwu.attach("loader", loader)                    anything with state_dict and load_state_dict
    luwu.attach("cursor", {"index": 0})              a dict, which is changed in place
    luwu.attach("buffers", model, per_rank=True)     a module: its persistent buffers
    luwu.attach("random", luwu.random_state(), per_rank=True)

What is attached is the state *before* a step, decided together with the step before it:

    at `step()`          taken: the batch is used up, its random numbers are drawn
    next step begins     taken of schedulers, and of what is attached with `late=True`: loops change
                         them after `step()`; then all of it is sent
    step is waited for   the same, since it is decided only with what is attached; if that is
                         changed later, it is replaced at the next wait, or as the next step begins
    run resumed          restored by `attach`, or when the optimizer is made if that comes later
    StepAborted          restored, to the state before the step that is computed again

A step begins with its first forward that can be trained, whatever was computed without gradients
before it. Attach right before the loop.

Every rank's state is kept. A rank that is new, or was left out of the last step, takes that of the
first rank that was in it. So do all where it is late, since ranks replace it one after the other;
a rank that restores while the first has gone on finds what there was as their attempt began.
What is attached with `per_rank=True` differs by rank: a rank takes its own, and a new one keeps the
state it has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgpack
import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler

from luwu.base.errors import ConfigError, StateError, StepOrderError
from luwu.base.foreign import taking
from luwu.base.values import pack_value, unpack_value
from luwu.nic.reader import StateReader
from luwu.nic.shell import Nic
from luwu.training.base.names import persistent_buffers
from luwu.training.base.progress import KEPT_STEPS, Progress


@runtime_checkable
class Stateful(Protocol):
    """A thing that can be attached."""

    def state_dict(self) -> Any:
        """Plain values and tensors (`luwu.base.values`)."""

    def load_state_dict(self, state: Any) -> object:
        """Go on from what `state_dict` gave."""


def random_state() -> Stateful:
    """Return an object for `attach`: the state of the global random generators.

    These are torch's, numpy's and Python's, and those of this worker's GPU.

    Returns:
        An object with `state_dict()` and `load_state_dict()`.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> luwu.attach("random", luwu.random_state(), per_rank=True)
    """
    return _RandomState()


@dataclass(frozen=True, slots=True)
class _Attached:
    thing: Stateful
    per_rank: bool
    late: bool


class Attachments:
    """The things that are attached to one session."""

    def __init__(self, nic: Nic, progress: Progress) -> None:
        self._nic, self._progress = nic, progress
        self._attached: dict[str, _Attached] = {}
        self._early: dict[int, bytes] = {}
        """Step -> the state before it of what is taken at `step()`."""
        self._late: dict[int, bytes] = {}
        """Step -> the state before it of what is taken when it begins, as it was last sent."""
        self._has_begun = False
        """What surrounds the next step is final."""
        self._waited_step = 0
        """The step the state before which was decided before it began, so ranks may differ in
        whether they have replaced it."""
        self._replaced_count = 0
        self._at_first: tuple[int, bytes] | None = None
        """The attempt that began with this step, and the state that was kept then of what is
        late."""
        self._found: dict[str, Any] | None = None
        """This rank's attachment in the resumed state; None: not read yet."""
        self._found_of_first: dict[str, Any] = {}
        """The attachment of the first rank that has one, in the resumed state."""

    def __bool__(self) -> bool:
        """True if anything is attached."""
        return bool(self._attached)

    def has(self, thing: object) -> bool:
        """True if this is attached, as of `step()` and for all ranks alike."""
        everything = self._attached.values()
        return any(a.thing is thing and not (a.per_rank or a.late) for a in everything)

    def attach(
        self, name: str, thing: Any, *, per_rank: bool = False, late: bool | None = None
    ) -> None:
        """Attach; restore, if we have resumed. See `luwu.attach`."""
        late = isinstance(thing, LRScheduler) if late is None else late
        attached = _Attached(_stateful(name, thing), per_rank=per_rank, late=late)
        if self._progress.is_begun:
            raise StepOrderError(
                f"attach({name!r}) after the first forward: steps were made without it. Attach "
                "before, so that a resumed run finds it"
            )
        if name in self._attached:
            raise ConfigError(f"attach: {name!r} is attached already; choose another name")
        pack_value(attached.thing.state_dict(), name=f"attached[{name!r}]")  # or raise, here
        self._attached[name] = attached
        if self._progress.is_resumed:
            self._restore(name)
        self._was_restored()

    def joined(self) -> None:
        """The session is a member of its job, and knows its step."""
        if self._progress.is_resumed:
            for name in self._attached:
                self._restore(name)
        self._was_restored()

    def take(self, step: int) -> None:
        """`step` is the next: `step()` of the one before was called."""
        if self._attached:
            self._early[step] = self._pack(late=False)
            self._early.pop(step - KEPT_STEPS, None)
            self._late.pop(step - KEPT_STEPS, None)
            self._has_begun, self._at_first = False, None

    def begin(self) -> None:
        """The training of the next step begins: the state before it is final."""
        self._send()
        self._has_begun = True

    def offer(self) -> None:
        """Something is computed after a step, maybe without gradients. A rank may be waiting for
        that step, so those send their state whose late part is not taken."""
        if self._attached and self._progress.step not in self._late and not self._is_taken:
            self.wait(self._progress.step - 1)

    def wait(self, step: int) -> None:
        """A step is waited for; if it is the last one, it is decided with the state as it is."""
        if step + 1 == self._progress.step and not self._has_begun:
            self._waited_step = step + 1
            self._send()

    def _send(self) -> None:
        """Send the state before the next step; if it was sent and has changed, replace it."""
        step = self._progress.step
        if not self._attached or self._has_begun:
            return
        late, before = self._pack(late=True), self._late.get(step)
        if step and before is None:
            self._nic.attach(step - 1, msgpack.packb([self._early[step], late]))
        elif step and late != before and self._is_taken:
            self._replaced_count += 1
            replacing = msgpack.packb(late)
            if self._at_first is not None:
                replacing += msgpack.packb(self._at_first)
            self._nic.attach(step - 1, replacing, self._replaced_count)
        self._late[step] = late

    def restart(self, step: int) -> None:
        """`step` is computed again: so must its surroundings be."""
        self._has_begun = False
        # Decided steps are lost, and it is long ago; or ranks may differ in what they replaced.
        if self._attached and (step not in self._early or 0 < step == self._waited_step):
            self._found = None
            for name in self._attached:
                self._restore(name)
            self._was_restored()
            return
        for taken in (self._early, self._late):
            for number in [number for number in taken if number > step]:
                del taken[number]
            if step in taken:
                states = unpack_value(taken[step])
                for name, state in states.items():
                    self._attached[name].thing.load_state_dict(state)
        self._note_first(step)

    def _was_restored(self) -> None:
        """What surrounds the next step is that of the network, or of a new run."""
        self._waited_step = step = self._progress.step
        self._early.clear()
        self._late = {step: self._pack(late=True)} if step else {}
        self.take(step)
        self._note_first(step)

    def _note_first(self, step: int) -> None:
        """An attempt begins with this step, and some ranks may not have restored it yet."""
        if step in self._late:
            self._at_first = self._nic.attempt, self._late[step]

    @property
    def _is_taken(self) -> bool:
        """True if a resumed run takes what this rank attaches late."""
        counted = self._nic.counted
        is_first = 1 << self._nic.rank == counted & -counted
        return is_first or any(each.late and each.per_rank for each in self._attached.values())

    def _pack(self, *, late: bool) -> bytes:
        states = {n: a.thing.state_dict() for n, a in self._attached.items() if a.late == late}
        return pack_value(states, name="attached")

    def _restore(self, name: str) -> None:
        if self._found is None:
            with self._nic.open_reader() as reader:
                attempt, first = self._nic.attempt, min(reader.facts.attached, default=0)
                self._found = _read(reader, self._nic.rank, attempt)
                self._found_of_first = _read(reader, first, attempt)
        attached = self._attached[name]
        is_common = attached.late and not attached.per_rank
        if name in self._found and not (is_common and name in self._found_of_first):
            attached.thing.load_state_dict(self._found[name])
        elif name in self._found_of_first and not attached.per_rank:
            attached.thing.load_state_dict(self._found_of_first[name])
        else:
            recorder, rank = self._nic.recorder, self._nic.rank
            recorder.event("worker.nothing_attached", level="WARNING", rank=rank, attached=name)


def _read(reader: StateReader, rank: int, attempt: int) -> dict[str, Any]:
    """The state that a rank keeps beside the version, as it was when this attempt began; nothing if
    it was made without."""
    data = reader.read_attached(rank)
    if data is None:
        return {}
    with taking(f"what rank {rank} attached to the step", StateError):
        unpacker = msgpack.Unpacker(max_buffer_size=0)
        unpacker.feed(data)
        (early, late), *replaced = unpacker
        if replaced:
            late, *at_first = replaced
            for first, kept in at_first:
                late = kept if first == attempt else late
        found: dict[str, Any] = {**unpack_value(early), **unpack_value(late)}
    return found


def _stateful(name: str, thing: Any) -> Stateful:
    if isinstance(thing, nn.Module):
        return _Buffers(thing)
    if isinstance(thing, LRScheduler):
        return _Scheduler(thing)
    if isinstance(thing, torch.Generator):
        return _Functions(thing.get_state, thing.set_state)
    if isinstance(thing, Stateful):
        return thing
    if isinstance(thing, MutableMapping):
        return _of_mapping(thing)
    if isinstance(thing, Sampler | DataLoader):
        raise ConfigError(
            f"attach({name!r}): a {type(thing).__name__} does not know how far it has come. Take "
            "the place in the data from optimizer.next_step, as docs/training.md shows under "
            "'Continue with the data after a resume', or attach a loader with state_dict() and "
            "load_state_dict()"
        )
    raise ConfigError(
        f"attach({name!r}): a {type(thing).__name__} has no state_dict() and load_state_dict(); "
        "give it both, or attach a dict, a module or a torch.Generator"
    )


class _Scheduler:
    """A scheduler and the groups it changes: torch keeps the rates it made in the optimizer."""

    def __init__(self, scheduler: LRScheduler) -> None:
        self._scheduler = scheduler

    def state_dict(self) -> Any:
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self._scheduler.optimizer.param_groups
        ]
        return {"scheduler": _plain(self._scheduler.state_dict()), "groups": groups}

    def load_state_dict(self, state: Any) -> None:
        own = vars(self._scheduler)
        values = {  # milestones are a Counter, which was packed as a dict
            key: type(own[key])(value) if isinstance(own.get(key), dict) else value
            for key, value in state["scheduler"].items()
        }
        self._scheduler.load_state_dict(values)
        for group, saved in zip(
            self._scheduler.optimizer.param_groups, state["groups"], strict=True
        ):
            group.update(saved)


def _plain(value: Any) -> Any:
    """Kinds of dict as dicts."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if type(value) is list else value


@dataclass(frozen=True, slots=True)
class _Functions:
    """A thing whose state is read and set by functions of other names."""

    state_dict: Callable[[], Any]
    load_state_dict: Callable[[Any], object]


def _of_mapping(values: MutableMapping[Any, Any]) -> Stateful:
    def load(state: Any) -> None:
        values.clear()
        values.update(state)

    return _Functions(lambda: dict(values), load)


class _Buffers:
    """The persistent buffers of a module, by their full names."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def state_dict(self) -> Any:
        return {each.full_name: each.value.detach() for each in persistent_buffers(self._module)}

    def load_state_dict(self, state: Any) -> None:
        named = {each.full_name: each.value for each in persistent_buffers(self._module)}
        if named.keys() != state.keys():
            odd = ", ".join(sorted(named.keys() ^ state.keys())[:5])
            raise ConfigError(
                f"the attached buffers are not those of this model ({odd}); resume with the model "
                "that the state was made with"
            )
        with torch.no_grad():
            for name, buffer in named.items():
                buffer.copy_(state[name])


class _RandomState:
    def state_dict(self) -> Any:
        state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
        state["numpy"] = np.random.get_state(legacy=True)
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state: Any) -> None:
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
