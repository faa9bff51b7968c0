"""A network in one process: what `luwu.nic.shell.Nic` does, with threads in place of peers.

`FakeNetwork` is the switch and the node; `FakeNic` is one rank's way to it. Contributions are added
in rank order and parameters are updated by the node's own kernel, so the arithmetic is the real
one; there is no protocol. Weights have two versions: the last decided, and the one being made. A
step is decided with its verdict.

Weights arrive when they are asked for (`eager`), or only when they are waited for: as late as they
may. `fail_at` loses the attempt at a chosen call.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from luwu.aggregate.interface import F32Array
from luwu.base.errors import LuwuError, StepAborted
from luwu.base.events import Recorder
from luwu.layout import Layout, padded
from luwu.nic.memory import ExtentGradient
from luwu.nic.threads import Copies, NicCounters, Ready
from luwu.wire.description import Description
from luwu.wire.hyper import decode_hyper
from luwu.wire.norms import Squares, clip_factor, norms_of
from switch_emu.node.kernels import Arrays, Run, UpdateCall, UpdateKernel
from switch_emu.node.kernels.make import make_kernel

WAIT_S_MAX = 60.0


@functools.cache
def _kernel(optimizer: str, state_fields: tuple[str, ...]) -> UpdateKernel:
    """The node's kernel, as it is chosen on this machine."""
    return make_kernel(optimizer, state_fields, cache=None).kernel


@dataclass(frozen=True, slots=True)
class Joined:
    step: int
    loaded: bool


class FakeHandle:
    """A push or a pull."""

    def __init__(
        self, attempt: int, key: tuple[int, int, int], into: Callable[[], memoryview] | None
    ) -> None:
        self.attempt, self.key, self.into = attempt, key, into
        self.done = False
        self.shared = None


@dataclass
class _Unit:
    """The flat vectors of one unit."""

    weights: F32Array
    state: tuple[F32Array, ...]
    updates: Counter[int] = field(default_factory=Counter)
    """How often each parameter was updated."""


class _Pushed(NamedTuple):
    """One rank's gradient of one extent."""

    data: memoryview | None
    dtype: str
    absent: int


@dataclass
class _Step:
    """What came for the undecided step."""

    is_skipped: bool = False

    pushes: dict[tuple[int, int], dict[int, dict[int, _Pushed] | None]] = field(
        default_factory=dict
    )
    """(part, unit) -> rank -> extent -> its gradient: the worker's own memory."""
    weights_of_ranks: dict[int, float] = field(default_factory=dict)
    begun: dict[int, bytes] = field(default_factory=dict)
    commits: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    made: dict[int, _Unit] = field(default_factory=dict)
    """Units of the version being made."""


class FakeNetwork:
    """See the module. `world_size` nics share one."""

    def __init__(self, world_size: int, *, chunk_bytes: int = 16384, eager: bool = True) -> None:
        self.world_size, self.chunk_bytes, self.eager = world_size, chunk_bytes, eager
        self.changed = threading.Condition()
        self.description: Description | None = None
        self.joined: set[int] = set()
        self.left: set[int] = set()
        self.loaded: set[int] = set()
        self.units: dict[int, _Unit] = {}
        self.step = 0
        self.attempt = 0
        self.outcomes: dict[int, tuple[bool, tuple[float, ...]]] = {}
        self.now = _Step()
        self.log: list[tuple[str, int, int, int, int]] = []
        """(verb, rank, step, part, unit) in order of arrival."""
        self.counts: Counter[str] = Counter()
        self.loses_first_weights = False
        """The next abort is that of a node that was killed before version 0 was decided."""
        self._failures: list[tuple[str, int | None, int | None, int | None]] = []

    def fail_at(
        self, verb: str, *, rank: int | None = None, step: int | None = None,
        unit: int | None = None,
    ) -> None:  # fmt: skip
        """Lose the attempt at the next such call: pull, push, commit (of the last rank)."""
        self._failures.append((verb, rank, step, unit))

    @property
    def layout(self) -> Layout:
        assert self.description is not None
        return self.description.layout

    def master(self, name: str) -> torch.Tensor:
        """Master weights of one parameter at the last decided step."""
        layout = self.layout
        index = next(i for i, p in enumerate(layout.parameters) if p.name == name)
        place = layout.placements[index]
        values = self.units[place.unit].weights[place.start : place.start + place.elems]
        return torch.from_numpy(values.copy()).view(layout.parameters[index].shape)

    def masters(self) -> dict[str, torch.Tensor]:
        """All of them, in the order of registration."""
        return {p.name: self.master(p.name) for p in self.layout.parameters}

    # ---------------------------------------------------------------------- called with the lock

    def note(self, verb: str, rank: int, step: int, part: int, unit: int) -> None:
        """A call came; lose the attempt if a test asked for it."""
        self.log.append((verb, rank, step, part, unit))
        self.counts[verb] += 1
        for failure in self._failures:
            asked_verb, asked_rank, asked_step, asked_unit = failure
            if (
                verb == asked_verb
                and asked_rank in (None, rank)
                and asked_step in (None, step)
                and asked_unit in (None, unit)
            ):
                if verb == "commit" and len(self.now.commits) < self.world_size - 1:
                    continue  # the last rank's
                self._failures.remove(failure)
                self.abort()
                return

    def abort(self) -> None:
        """Give up the attempt: the state is that of the last decided step."""
        self.attempt += 1
        if self.loses_first_weights:
            self.loses_first_weights = False
            self.units.clear()
            self.loaded.clear()
        self.now = _Step()
        self.changed.notify_all()

    def advance(self) -> None:
        """Do what can be done with what has come."""
        if self.description is None:
            return
        if self.description.update == "streaming" and len(self.now.begun) == self.world_size:
            for part, unit in list(self.now.pushes):
                self._stream(part, unit)
        if len(self.now.commits) == self.world_size and self._all_pushed():
            self._decide()
        self.changed.notify_all()

    def _stream(self, part: int, unit: int) -> None:
        trains = bool(self.layout.trainable_extents(unit))
        if trains and unit not in self.now.made and self._is_whole(part, unit):
            self._update(unit, 1, scale=1.0)

    def _all_pushed(self) -> bool:
        parts = {parts for parts, _ in self.now.commits.values()}
        assert len(parts) == 1, f"ranks ran different numbers of backwards: {parts}"
        return all(
            self._is_whole(part, unit)
            for part in range(parts.pop())
            for unit in range(len(self.layout.units))
            if self.layout.trainable_extents(unit)
        )

    def _is_whole(self, part: int, unit: int) -> bool:
        came = self.now.pushes.get((part, unit), {})
        extents_count = len(self.layout.trainable_extents(unit))
        return len(came) == self.world_size and all(
            extents is None or len(extents) == extents_count for extents in came.values()
        )

    def _decide(self) -> None:
        parts, hyper = self.now.commits[0]
        assert all(other == (parts, hyper) for other in self.now.commits.values())
        units = [u for u in range(len(self.layout.units)) if self.layout.trainable_extents(u)]
        assert self.description is not None
        assert self.description.norm_type == 2
        clips = decode_hyper(hyper).all_clips(2.0)
        norms = norms_of([self._squares(units, parts)], 2.0, clips)
        applied = math.isfinite(norms[0]) and not self.now.is_skipped
        if applied:  # else the weights stay those of the step before, and nobody goes back
            for unit in units if not self.now.made else ():
                self._update(unit, parts, scale=clip_factor(clips, norms))
            self.units.update(self.now.made)
        self.outcomes[self.step] = (applied, norms)
        self.step += 1
        self.now = _Step()

    def _squares(self, units: Iterable[int], parts: int) -> Squares | None:
        sums = [total for unit in units if (total := self._sums(unit, parts)) is not None]
        means = [total.astype(np.float64) / self._divisor() for total in sums]
        squares = [float(np.dot(mean, mean)) for mean in means]
        return {(2.0, 1.0): squares} if np.isfinite(squares).all() else None

    def _divisor(self) -> float:
        return sum(self.now.weights_of_ranks.values())

    def _sums(self, unit: int, parts: int) -> F32Array | None:
        """Sum over parts of the sum over ranks, in order; None if no rank had a gradient."""
        total: F32Array | None = None
        for part in range(parts):
            of_part: F32Array | None = None
            for _, extents in sorted(self.now.pushes.get((part, unit), {}).items()):
                if extents is not None:
                    floats = np.concatenate([
                        _floats(each, self.layout.chunks[i].elems)
                        for i, each in sorted(extents.items())
                    ])  # fmt: skip
                    of_part = floats if of_part is None else of_part + floats
            if of_part is not None:
                total = of_part if total is None else total + of_part
        return total

    def _present(self, unit: int) -> set[int]:
        """The parameters for which a rank had a gradient in any backward."""
        return {
            segment.parameter
            for (_, of_unit), ranks in self.now.pushes.items()
            for extents in (ranks.values() if of_unit == unit else ())
            for index, pushed in (extents or {}).items()
            for bit, segment in enumerate(self.layout.segments(index))
            if pushed.data is not None and not pushed.absent >> bit & 1
        }

    def _update(self, unit: int, parts: int, *, scale: float) -> None:
        made = self.now.made[unit] = copy.deepcopy(self.units[unit])
        total, layout = self._sums(unit, parts), self.layout
        assert self.description is not None
        kernel = _kernel(self.description.optimizer, self.description.state_fields)
        hyper = decode_hyper(next(iter(self.now.begun.values()), None) or self.now.commits[0][1])
        for index in self._present(unit):
            assert total is not None
            place = layout.placements[index]
            part = slice(place.start, place.start + padded(place.elems))
            arrays = Arrays(made.weights[part], tuple(each[part] for each in made.state))
            group = hyper.groups[layout.parameters[index].group]
            stop, count = padded(place.elems), made.updates[index]
            kernel.update(UpdateCall(
                contributions=[(total[part].view(np.uint8).data, "float32")], old=arrays,
                new=arrays, runs=[Run(start=0, stop=stop, hyper=group, updates_count=count)],
                divisor=self._divisor(), scale=scale, wire=None, measure=False,
            ))  # fmt: skip
            made.updates[index] += 1


class FakeCell:
    """Fresh memory each time."""

    def __init__(self, nbytes: int) -> None:
        self.data = memoryview(bytearray(nbytes))
        self.is_needed = True


class FakeCells:
    """Every other cell must be waited for."""

    def __init__(self) -> None:
        self._taken_count = 0

    def take_now(self, nbytes: int) -> FakeCell | None:
        self._taken_count += 1
        return None if self._taken_count % 2 else FakeCell(nbytes)

    def take(self, nbytes: int) -> FakeCell:
        return FakeCell(nbytes)

    def watch(self, reserved: object, dropped: object) -> None:
        pass


class FakeNic:
    """One rank's way to a `FakeNetwork`."""

    def __init__(self, network: FakeNetwork, rank: int, *, prefetch_units: int = 2) -> None:
        self.network, self.rank, self.world_size = network, rank, network.world_size
        self.counted = (1 << network.world_size) - 1
        self.chunk_bytes = network.chunk_bytes
        self.extent_chunks = 1
        self.prefetch_units = prefetch_units
        self.optimizer_nodes = 1
        self.reshard_after_forward = None
        self.recorder = Recorder(role="worker", printed=None)
        self.cells = FakeCells()
        self.counters = NicCounters()
        self.is_closed = False
        self.attempt = 0
        self._copies = Copies(self._copy_failed)
        self._error: Exception | None = None

    def join(self, description: Description) -> Joined:
        network = self.network
        with network.changed:
            self._check()
            if network.description is None:
                network.description = description
            if network.description.hash != description.hash:
                raise LuwuError("the ranks have different job descriptions")
            network.joined.add(self.rank)
            network.changed.notify_all()
            self._wait(lambda: len(network.joined) == self.world_size)
            return Joined(network.step, self.is_loaded)

    @property
    def is_loaded(self) -> bool:
        return len(self.network.loaded) == len(self.network.layout.chunks)

    def load(self, chunks: Iterable[tuple[int, memoryview]]) -> None:
        assert self.rank == 0
        assert self.network.description is not None
        fields = self.network.description.state_fields
        layout, units = self.network.layout, self.network.units
        for index, data in chunks:
            chunk, values = layout.chunks[index], np.frombuffer(data, np.float32)
            assert values.size == chunk.elems
            with self.network.changed:
                self._check()
                if chunk.unit not in units:
                    weights, *state = (
                        np.zeros(layout.unit_elems[chunk.unit], np.float32)
                        for _ in ("weight", *fields)
                    )
                    units[chunk.unit] = _Unit(weights, tuple(state))
                units[chunk.unit].weights[chunk.start : chunk.start + chunk.elems] = values
                self.network.loaded.add(index)
                self.network.note("load", self.rank, 0, 0, chunk.unit)
                self.network.changed.notify_all()
                self._check()

    def pull(
        self, step: int, part: int, unit: int, memory: Callable[[], memoryview], *, in_place: bool
    ) -> FakeHandle:
        with self.network.changed:
            self._check()
            handle = FakeHandle(self.attempt, (step, part, unit), memory)
            self.network.note("pull", self.rank, step, part, unit)
            self._check()
            if self.network.eager:
                self._fill(handle)
            return handle

    def forget(self, handle: FakeHandle) -> None:
        with self.network.changed:
            self._check()
            self.network.note("forget", self.rank, *handle.key)
            handle.into = None

    def push(
        self, step: int, part: int, unit: int, gradients: Sequence[ExtentGradient] | None,
        dtype: str, *, last: bool, weight: float = 1.0, ready: Ready | None = None,
    ) -> FakeHandle:  # fmt: skip
        with self.network.changed:
            self._check()
            handle = FakeHandle(self.attempt, (step, part, unit), None)

        def hand_over() -> None:
            try:
                self._push(handle, gradients, dtype, last=last, weight=weight)
            except StepAborted:  # raised by the next call of the training thread
                for each in gradients or ():
                    if each.cell is not None:
                        each.cell.is_needed = False

        self._copies.add(ready, hand_over)
        with self.network.changed:
            self._check()
        return handle

    def _push(
        self, handle: FakeHandle, gradients: Sequence[ExtentGradient] | None, dtype: str, *,
        last: bool, weight: float,
    ) -> None:  # fmt: skip
        step, part, unit = handle.key
        network = self.network

        def check() -> None:
            if handle.attempt != network.attempt:
                raise StepAborted(step, "the test lost the attempt")

        with network.changed:
            check()
            came = network.now.pushes.get((part, unit), {})
            if came.get(self.rank) is None:  # not another group of the same push
                assert self.rank not in came, f"unit {unit}, part {part} was pushed twice"
                network.note("push", self.rank, step, part, unit)
            check()
            assert step == network.step, f"push of step {step}, undecided is {network.step}"
            streaming = network.description and network.description.update == "streaming"
            assert last == bool(streaming)
            assert not streaming or self.rank in network.now.begun, "push before begin"
            came = network.now.pushes.setdefault((part, unit), {})
            if gradients is None:
                came[self.rank] = None
            else:
                mine = came.setdefault(self.rank, {})
                assert mine is not None, f"unit {unit}, part {part} was pushed twice"
                for extent, cell, absent in gradients:
                    assert extent not in mine, f"extent {extent}, part {part} was pushed twice"
                    mine[extent] = _Pushed(None if cell is None else cell.data, dtype, absent)
            network.now.weights_of_ranks[self.rank] = weight
            handle.done = network.eager
            network.advance()

    def _copy_failed(self, error: Exception) -> None:
        self._error = error

    def wait_for_copies(self, until: Callable[[], bool] = lambda: False) -> None:
        self._copies.wait(until)

    def begin(self, step: int, hyper: bytes) -> None:
        with self.network.changed:
            self._wait(lambda: self.network.step >= step)
            self.network.now.begun[self.rank] = hyper
            self.network.advance()

    def attach(self, step: int, data: bytes, part: int = 0) -> None:
        with self.network.changed:
            self._check()

    def commit(self, step: int, parts: int, hyper: bytes, *, skip: bool = False) -> FakeStepHandle:
        self._copies.wait()
        with self.network.changed:
            self._check()
            self.network.note("commit", self.rank, step, parts, 0)
            self._check()
            self.network.now.commits[self.rank] = (parts, hyper)
            self.network.now.is_skipped |= skip
            self.network.advance()
            return FakeStepHandle(self, step)

    def cancel(self, text: str) -> None:
        self._copies.wait()
        with self.network.changed:
            self._check()
            self.network.abort()

    def wait(self, handle: FakeHandle) -> None:
        with self.network.changed:
            self._check()
            if handle.into is None:
                handle.done = True
            self._wait(lambda: handle.done or self._fill(handle))

    def leave(self) -> None:
        with self.network.changed:
            self._check()
            self.network.left.add(self.rank)

    def close(self) -> None:
        self._copies.close()
        self.is_closed = True

    # ---------------------------------------------------------------------- called with the lock

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self.attempt != self.network.attempt:
            self.attempt = self.network.attempt
            raise StepAborted(self.network.step, "the test lost the attempt")

    def _wait(self, condition: Callable[[], bool]) -> None:
        def reached() -> bool:
            return self.attempt != self.network.attempt or condition()

        if not self.network.changed.wait_for(reached, timeout=WAIT_S_MAX):
            raise TimeoutError(f"rank {self.rank} waited in vain")
        if not condition():
            self._check()

    def _fill(self, handle: FakeHandle) -> bool:
        step, _, unit = handle.key
        network = self.network
        layout = network.layout
        chunks = layout.unit_chunks[unit]
        if network.step < step or not network.loaded.issuperset(chunks):
            return False
        assert network.step == step, f"pull of step {step}, undecided is {network.step}"
        assert unit not in network.now.made, f"unit {unit} was pulled after its update in {step}"
        assert handle.into is not None
        into = handle.into()
        assert into.nbytes == layout.unit_wire_bytes(unit)
        assert not into.readonly
        at = 0
        for index in chunks:
            chunk = layout.chunks[index]
            end = at + chunk.wire_bytes
            weights = network.units[unit].weights[chunk.start : chunk.start + chunk.elems]
            _kernel("none", ()).cast(weights, chunk.wire_dtype, into[at:end])
            at = end
        handle.into = None
        handle.done = True
        return True


class FakeStepHandle:
    """A committed step."""

    def __init__(self, nic: FakeNic, step: int) -> None:
        self._nic, self._step = nic, step

    def verdict(self) -> tuple[bool, tuple[float, ...]]:
        network = self._nic.network
        with network.changed:
            if self._step not in network.outcomes:
                self._nic._wait(lambda: self._step in network.outcomes)
            return network.outcomes[self._step]

    def decision(self) -> None:
        self.verdict()


def _floats(pushed: _Pushed, elems: int) -> F32Array:
    if pushed.data is None:
        return np.zeros(elems, np.float32)
    tensor = torch.frombuffer(bytearray(pushed.data), dtype=getattr(torch, pushed.dtype))
    values: F32Array = tensor.float().numpy().copy()
    return values
