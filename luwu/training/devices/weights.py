"""The storage of a unit's weights: one for the unit's life, at addresses that stay its own.

Autograd saves views of parameters in forward and reads them in backward. They all look at the same
addresses, so the memory behind these may be used elsewhere between, and the weights put back: the
views then see the new bytes. (Swapping `.data` instead would leave them with the old ones.)

Where the sender's memory is shared with this process, the weights are used where they lie, and
nothing is copied. They have a storage of their own at each such address, and are not let go before
the step ends: to free them gives no memory back, and what a graph saved stays as it was. A unit
that was copied in a step is copied again in the same step, for the graph looks at that storage.

Autograd compares the version counter of what it saved before it reads it. So the counter of weights
that are away is another than when they were saved, and so is that of a later step's: a backward
that reaches them unseen ends with an error, never with the wrong numbers.

On a GPU it is a storage of the device (`DeviceWeights`).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from luwu.base.address_range import AddressRange, Memory
from luwu.base.errors import LuwuError, StepOrderError
from luwu.nic.memory import SharedWeights
from luwu.training.devices.device import CudaDevice


class Storages:
    """A set of storages, by identity; it keeps none of them alive."""

    def __init__(self) -> None:
        self._known: dict[int, StorageWeakRef] = {}
        """References by number; while one exists, its number belongs to no other storage."""
        self._look_at = 64

    def add(self, tensor: Tensor) -> None:
        """The storage of this tensor, from now on."""
        if len(self._known) >= self._look_at:
            # To copy is one step; while items are listed, other threads may add one.
            for number, known in self._known.copy().items():
                if known.expired():
                    self._known.pop(number, None)
            self._look_at = 2 * len(self._known) + 64
        known = StorageWeakRef(tensor.untyped_storage())
        self._known[known.cdata] = known

    def __contains__(self, tensor: Tensor) -> bool:
        # A tensor of another layout has no storage.
        return tensor.layout == torch.strided and tensor.untyped_storage()._cdata in self._known


WEIGHTS = Storages()
"""Storages of every unit's weights: the memory behind them comes and goes (`weights.py`)."""


WRITTEN: Final = (
    "the change would be lost, because the weights live in the network. Only the optimizer changes "
    "them; what a forward changes is a buffer"
)
_ADDRESSES_MAX = 2
"""Places of a unit's weights in shared memory: one for even and one for odd steps."""


class ByteCount:
    """Bytes of weights in this process, now and at most."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0

    def add(self, count: int) -> None:
        """Count bytes taken, or given back if negative."""
        self.now += count
        self.peak = max(self.peak, self.now)


class _Weight(nn.Parameter):
    """A parameter while its weights are here: nothing changes them unseen."""

    @property
    def data(self) -> Tensor:
        """The values; unlike torch's, with the parameter's version, so that writes are noticed."""
        return self.detach()

    @data.setter
    def data(self, value: object) -> NoReturn:
        raise LuwuError(f"a weight was changed by `.data =`; {WRITTEN}")

    def __deepcopy__(self, memo: object) -> nn.Parameter:
        return nn.Parameter(self.detach().clone(), self.requires_grad)  # no weight: the script's


class _View:
    """One place of the flat vector, and the parameters that are views of it."""

    def __init__(self, flat: torch.Tensor, places: Sequence[tuple[int, torch.Size, bool]]) -> None:
        self.flat = flat
        WEIGHTS.add(flat)
        self.parameters = [
            _Weight(flat[start : start + shape.numel()].view(shape), requires_grad)
            for start, shape, requires_grad in places
        ]
        self.version = 0
        """The counter while the weights of this step are here."""

    def count_as(self, version: int) -> None:
        """Autograd finds this version from now on: that of weights that are away, which no graph
        has saved, or of those that are here."""
        torch._C._autograd._unsafe_set_version_counter((self.flat,), (version,))

    def end_step(self) -> None:
        """The next weights are others."""
        self.version = (self.version + 1) % FIRST_AWAY


class UnitWeights:
    """One flat vector in the wire dtype, and the parameters that are views of it."""

    def __init__(
        self, *, elems: int, dtype: torch.dtype, live_bytes: ByteCount,
        places: Sequence[tuple[int, torch.Size, bool]], memory: Memory | None = None,
        name: str = "",
    ) -> None:  # fmt: skip
        """`places`: first element, shape and requires_grad of each parameter; `memory`: of all
        units together; `name`: of the unit."""
        self.name = name
        self._live_bytes = live_bytes
        self._places = places
        self._memory = memory or Memory()
        with torch.inference_mode(False):  # the script may evaluate first
            self._own = _View(self._allocate(elems, dtype), places)
        self._away = version_of(self)
        self._own.count_as(self._away)
        self._mapped: dict[int, _View] = {}
        """Views of weights in shared memory, by address."""
        self.shared: SharedWeights | None = None
        """The weights of this step, where their sender has them: need not be pulled again."""
        self._is_open = False
        self._was_copied = False
        """True if it was copied in this step."""
        self.nbytes = self.memory_bytes = elems * dtype.itemsize
        """`memory_bytes`: what they take while they are here or asked for; 0 if the last ones came
        in shared memory."""
        self._show(self._own)

    def may_be_shared(self, *, next_step: bool = False) -> bool:
        """True if the next pull may leave the weights where their sender has them; for the next
        step, whose graph looks at nothing yet, more often."""
        return next_step or not self._was_copied

    def prepare(self, *, wait: bool) -> bool:
        """A pull is about to be asked for; False if there is no room for it, unless we `wait`."""
        return True

    def open(self) -> memoryview:
        """Take memory; the caller fills it, then `publish` is called."""
        assert not self._is_open
        self._is_open = True
        self._live_bytes.add(self.nbytes)
        self._memory.fill(self._range)
        return self._range.view()

    def fetch(self, shared: SharedWeights | None = None) -> None:
        """The weights came; they are used later, if they are not given up."""

    def publish(self, shared: SharedWeights | None = None) -> None:
        """The weights are there, in our memory or where `shared` says: they may be read."""
        if shared is not None:
            self.shared, self.memory_bytes = shared, 0
            self._show(self._mapped_view(shared))
            return
        self._was_copied, self.memory_bytes = True, self.nbytes
        self._own.count_as(self._own.version)
        self._show(self._own)

    def was_written(self) -> bool:
        """True if a parameter was changed in place since the last look."""
        view = self._view
        before, view.version = view.version, view.flat._version
        return view.version != before

    def free(self) -> None:
        """Let other units have the memory; the parameters must not be read until they are back."""
        if self._is_open:
            self._is_open = False
            self._live_bytes.add(-self.nbytes)
            self._memory.spare(self._range)
            self._own.count_as(self._away)

    def end_step(self) -> None:
        """Nothing of this step is read any more."""
        self._was_copied = False
        self._own.end_step()
        for view in self._mapped.values():
            view.end_step()
            view.count_as(view.version)
        if self.shared is not None:
            self.shared.release()
            self.shared = None

    def _show(self, view: _View) -> None:
        self._view = view
        self.parameters = view.parameters
        """The parameters where the weights are now, or were last."""

    def _allocate(self, elems: int, dtype: torch.dtype) -> torch.Tensor:
        self._range = AddressRange(elems * dtype.itemsize)
        return torch.frombuffer(self._range.view(), dtype=dtype)

    def _mapped_view(self, shared: SharedWeights) -> _View:
        view = self._mapped.get(shared.address)
        if view is None:
            if len(self._mapped) == _ADDRESSES_MAX:  # the sender was started again
                del self._mapped[next(iter(self._mapped))]
            memory = (ctypes.c_ubyte * self.nbytes).from_address(shared.address)
            memory.mapping = shared.mapping  # type: ignore[attr-defined]  # lives as long as views
            with torch.inference_mode(False):
                flat = torch.frombuffer(memory, dtype=self._own.flat.dtype)
                view = self._mapped[shared.address] = _View(flat, self._places)
        return view


FIRST_AWAY: Final = 1 << 31
"""Versions from here on are of weights that are away. Autograd counts in 32 bits."""
_FOUND: Final = re.compile(r"is at version (\d+)")


_weights: Final[weakref.WeakValueDictionary[int, UnitWeights]] = weakref.WeakValueDictionary()
_versions: Final = itertools.count(FIRST_AWAY)


def version_of(weights: UnitWeights) -> int:
    """The version of these weights while they are away; of no others."""
    version = next(_versions)
    _weights[version] = weights
    return version


@functools.cache
def name_units_in_errors() -> None:
    """Let backwards of this process raise StepOrderError where they read weights that are away.

    Weights that are away have a version that no graph has saved, so autograd refuses to read them,
    at the operation that would. Its error gives the version alone; the unit follows from it.
    """
    autograd: Any = torch.autograd  # `backward` and `grad` both call this
    run = autograd._engine_run_backward

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except RuntimeError as error:
            found = _FOUND.search(str(error))
            weights = None if found is None else _weights.get(int(found[1]))
            if weights is None:
                raise
            raise StepOrderError(
                f"backward reached unit {weights.name} past its outputs, while its weights were "
                "away: through a loss or an activation that its module keeps, or that a hook, an "
                "object or a transform of torch.func took. Return from the module's forward what "
                "backward is to come from; or keep its weights in this process, by "
                "reshard_after_forward=False of fully_shard and set_reshard_after_backward(False)"
            ) from error

    autograd._engine_run_backward = run_backward


class _SavedWeight(NamedTuple):
    """A weight in a graph, in place of what a hook would have returned for it."""

    weight: Tensor
    version: int


@functools.cache
def keep_weights_from_hooks() -> None:
    """Let `torch.autograd.graph.saved_tensors_hooks`, as `save_on_cpu`, leave weights alone.

    A hook would keep a copy of the weights until backward, and of what it returns autograd compares
    no version. A checkpoint's hooks copy nothing, and count what comes in both of its forwards.
    """
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    push = torch._C._autograd._push_saved_tensors_default_hooks

    @functools.wraps(hooks.__enter__)
    def enter(self: Any) -> None:
        pack, unpack = self.pack_hook, self.unpack_hook
        if type(self).__module__ != "torch.utils.checkpoint":
            pack, unpack = functools.partial(_pack, pack), functools.partial(_unpack, unpack)
        push(pack, unpack)

    hooks.__enter__ = enter


def _pack(hook: Callable[[Tensor], Any], tensor: Tensor) -> Any:
    if tensor in WEIGHTS:
        return _SavedWeight(tensor.detach(), tensor._version)
    return hook(tensor)


def _unpack(hook: Callable[[Any], Tensor], packed: Any) -> Tensor:
    if not isinstance(packed, _SavedWeight):
        return hook(packed)
    weight, expected = packed
    if weight._version != expected:  # `name_units_in_errors` reads it in this text, as in torch's
        raise RuntimeError(
            f"a weight that was saved for backward is at version {weight._version}; expected "
            f"version {expected}: it was changed in place, or its forward is of an earlier step"
        )
    return weight


class DeviceWeights(UnitWeights):
    """A unit's weights on a GPU: host memory for the network, and a storage on the device.

        away      `prepare`   host memory of the ring is ours; a pull may be asked for
        asked     `open`      (in the NIC's thread) the network fills the host memory
        came      `fetch`     it is copied to the storage, behind the compute; host memory goes
        fetched   `publish`   the compute that is queued from now on sees the weights
        any       `free`      nothing queued from now on reads them

    The storage's bytes come from torch's caching allocator, filed under the pull stream: the same
    sizes come again in every step, so after the first no device memory is asked of the driver.
    """

    def __init__(
        self, *, elems: int, dtype: torch.dtype, device: CudaDevice, live_bytes: ByteCount,
        places: Sequence[tuple[int, torch.Size, bool]], name: str = "",
    ) -> None:  # fmt: skip
        self._device = device
        super().__init__(elems=elems, dtype=dtype, live_bytes=live_bytes, places=places, name=name)
        self._storage = self._own.flat.untyped_storage()
        with torch.inference_mode(False):
            self._octets = torch.empty(0, dtype=torch.uint8, device=device.where)
            self._octets.set_(self._storage, 0, (self.nbytes,))  # type: ignore[call-overload]
        """The same storage, with a version counter of its own: a copy to it is no change for the
        views that autograd has saved, as it puts back what was there."""
        self._storage.resize_(0)
        self._host: torch.Tensor | None = None
        self._event: torch.cuda.Event | None = None
        """Event behind the copy to the device."""

    def may_be_shared(self, *, next_step: bool = False) -> bool:
        return self._device.may_share

    def prepare(self, *, wait: bool) -> bool:
        if self._host is None:
            ring = self._device.host
            self._host = ring.wait() if wait else ring.take()
        return self._host is not None

    def open(self) -> memoryview:
        assert self._host is not None
        address = self._host.data_ptr()
        return memoryview((ctypes.c_ubyte * self.nbytes).from_address(address)).cast("B")

    def fetch(self, shared: SharedWeights | None = None) -> None:
        if self._event is not None:
            return
        assert self._host is not None
        assert not self._is_open
        self._is_open = True
        self._live_bytes.add(self.nbytes)
        host, self._host = self._host, None
        self._event = self._device.fetch(self._octets, host, shared)

    def publish(self, shared: SharedWeights | None = None) -> None:
        self.fetch(shared)
        assert self._event is not None
        self._device.streams.compute().wait(self._event)
        self._own.count_as(self._own.version)

    def free(self) -> None:
        if self._host is not None:  # nothing was copied from it
            self._device.host.give(self._host)
            self._host = None
        if self._is_open:
            self._is_open = False
            self._live_bytes.add(-self.nbytes)
            self._device.free(self._storage)
            self._own.count_as(self._away)
        self._event = None

    def _allocate(self, elems: int, dtype: torch.dtype) -> torch.Tensor:
        """The flat vector, without bytes."""
        flat = torch.empty(0, dtype=dtype, device=self._device.where)
        storage = flat.untyped_storage()
        self._device.streams.pull.resize(storage, elems * dtype.itemsize)
        flat.set_(storage, 0, (elems,))  # type: ignore[call-overload]
        return flat
