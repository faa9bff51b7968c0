"""A model that computes with a decided step of a running job, one unit at a time, and never trains.

    with torch.device("meta"):
        model = GPT(config)
    with torch.no_grad(), luwu.read_from(model, "luwu-runs/latest/connect.json") as reading:
        logits = model(ids)          the weights of step reading.version, unit by unit
        reading.refresh()            on to the newest step

Before the forward of a unit's module its weights are read, after it they are freed; while it
computes, the unit that came next last time is read by a thread of its own (`reading_thread.py`).
So what is here at most is the units that are inside one another, and one read ahead. Training goes
on meanwhile, and is not waited for: what was opened stays that of one step until `refresh`.

Weights come in the dtype in which they travel to workers, and inputs are cast to it where workers
cast them, so a forward gives the bits that it gives in training. Buffers are not in the network.
Running statistics, as of BatchNorm, are a worker's: they must be given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from luwu.base.closing import Closing
from luwu.base.errors import ConfigError, LuwuError
from luwu.join.connection import Connection, join
from luwu.layout import DTYPE_BYTES
from luwu.nic.reader import StateReader
from luwu.training.base.names import class_name, dtype_name
from luwu.training.base.trees import map_tensors
from luwu.training.base.uncompiled import uncompiled
from luwu.training.devices.weights import ByteCount
from luwu.training.reading.read_buffers import fill_buffers
from luwu.training.reading.read_units import ReadUnit, find_units
from luwu.training.reading.reading_thread import OpenSource, ReadingThread

_JOIN_S = 60.0
"""How long to wait for a connection file."""

Source = str | Path | Connection | StateReader | OpenSource


def read_from(
    model: nn.Module, source: Source, *, dtype: torch.dtype | None = None,
    buffers: Mapping[str, Tensor] | None = None,
    init_weights: Callable[[nn.Module], object] | None = None, read_ahead: bool = True,
    average: bool = False,
) -> ReadModel:  # fmt: skip
    """Let a plain model compute with the newest decided step of a job, while training goes on.

    The weights of a unit are read before its forward and freed after it. They stay those of one
    step until `refresh`. The model is put into `eval()`; one thread may call it, without gradients.

    Args:
        model: A model with the parameters and units of the job's; may be made on `meta`. Its own
            weights are let go of.
        source: Connection file or URL of the job, such as `"luwu-runs/latest/connect.json"`; or a
            function that makes a reader.
        dtype: Dtype of the weights here; by default that in which they travel to workers.
        buffers: Values of buffers by full names; running statistics (BatchNorm) must be given.
        init_weights: Called as `fn(module)` to fill buffers on `meta`; by default
            `reset_parameters` does.
        read_ahead: Read the next unit while one computes: faster, and one unit more in memory.
        average: Compute with the average of the weights (`luwu.ema`, `luwu.swa`) of that step.

    Returns:
        A context manager that ends the reading.

    Raises:
        ConfigError: If the model is not that of the job, or the job keeps no average.
        ConnectionFailed: If the job cannot be reached.
        DeadlineError: If the job does not answer in time.

    Examples:
        >>> session = luwu.init_local()
        >>> trained = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(trained.parameters(), lr=0.1)
        >>> trained(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step().wait()
        >>> model = torch.nn.Linear(4, 2)
        >>> with torch.no_grad(), luwu.read_from(model, session.open_reader) as reading:
        ...     print(reading.version, model(torch.ones(1, 4)).shape)
        1 torch.Size([1, 2])
    """
    _check_dtype(dtype)
    thread = ReadingThread(_opener(source))
    try:
        live_bytes = ByteCount()
        with torch.inference_mode(False):  # what is made here outlives it
            units = find_units(
                model, thread.source.description,
                dtype=dtype, live_bytes=live_bytes, average=average,
            )  # fmt: skip
            fill_buffers(model, buffers or {}, init_weights)
        model.eval()
        return ReadModel(
            model, thread, units,
            weight_bytes=live_bytes, read_ahead=read_ahead, may_refresh=_may_refresh(source),
        )  # fmt: skip
    except BaseException:
        thread.close()
        raise


def _check_dtype(dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype_name(dtype) not in DTYPE_BYTES:
        kinds = ", ".join(DTYPE_BYTES)
        raise ConfigError(f"read_from: dtype {dtype}, but weights can be had in {kinds}")


class ReadModel(Closing):
    """A model that reads its weights from a job, made by `read_from`; a context manager.

    Examples:
        >>> session = luwu.init_local()
        >>> trained = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(trained.parameters(), lr=0.1)
        >>> reading = luwu.read_from(torch.nn.Linear(4, 2), session.open_reader)
        >>> trained(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step().wait()
        >>> reading.version, reading.refresh()
        (0, 1)
        >>> reading.close()
    """

    def __init__(
        self, model: nn.Module, thread: ReadingThread, units: list[ReadUnit], *,
        weight_bytes: ByteCount, read_ahead: bool, may_refresh: bool,
    ) -> None:  # fmt: skip
        self.weight_bytes = weight_bytes
        """Bytes of weights in this process: `now` and `peak`."""
        self.bytes_read = 0
        """Bytes of weights read in total."""
        self.use_count = 0
        """Number of times a unit was needed that was not here."""
        self.early_count = 0
        """Number of these times at which the unit had been read already."""
        self._model, self._thread, self._units = model, thread, units
        self._reads_ahead, self._may_refresh = read_ahead, may_refresh
        self._entered: list[nn.Module] = []
        """Modules whose forward is under way, the innermost last."""
        self._coming: tuple[ReadUnit, Future[None]] | None = None
        """Being read, or read and not needed yet."""
        self._used: tuple[int, int] = (-1, -1)
        """Indices of the last two units that were read for use."""
        self._came_after: dict[tuple[int, int], ReadUnit] = {}
        """The unit that was used after these two, last time."""
        self._is_closed = False
        self._units_of: dict[nn.Module, list[ReadUnit]] = {model: []}
        for unit in units:
            unit.take_parameters()
            for module in unit.modules:
                self._units_of.setdefault(module, []).append(unit)
        self._hooks = [hook for module in self._units_of for hook in self._hooks_on(module)]
        self._methods: list[tuple[nn.Module, str]] = []

    @property
    def version(self) -> int:
        """Number of decided steps behind the weights."""
        return self._thread.source.version

    @property
    def agreement(self) -> Mapping[str, str]:
        """Values that the job's workers agreed on, such as a digest of the data."""
        return self._thread.source.description.agreement

    @property
    def model_bytes(self) -> int:
        """Bytes of the weights of all units, as they are stored: padding included."""
        return sum(unit.nbytes for unit in self._units)

    def refresh(self) -> int:
        """Go on with the newest decided step.

        What the script keeps of the older step, such as a cache of keys and values, it must drop.

        Returns:
            Number of decided steps behind the weights.

        Raises:
            LuwuError: Inside a forward; call it between forwards.
            ConfigError: If `read_from` was given a reader, which holds one step.
            ConnectionFailed: If the job cannot be reached; the old step stays.
        """
        self._check_usable()
        if self._entered:
            raise LuwuError(
                f"refresh inside the forward of {class_name(self._entered[0])}: its units would be "
                "of two steps; call it between forwards (and reset() after an interrupted one)"
            )
        if not self._may_refresh:
            raise ConfigError(
                "refresh: read_from was given a reader, which holds one step; give it a "
                "connection, or a function that makes a reader"
            )
        self._drop_coming()
        before = self._thread.source.description
        self._thread.reopen()
        if self._thread.source.description != before:
            self.close()
            raise LuwuError("refresh: another job answers there now; call read_from again")
        return self.version

    def reset(self) -> None:
        """Forget a forward that was interrupted, and free its weights."""
        self._entered.clear()
        self._drop_coming()
        for unit in self._units:
            unit.remove()

    def register_forward_method(self, module: nn.Module, name: str) -> None:
        """Read the unit's weights around another method than `forward`, such as `generate`.

        Args:
            module: The module of a unit, or the model.
            name: Name of the method; the weights stay until it returns.

        Raises:
            ConfigError: If the module is not that of a unit, or has no such method.
        """
        if module not in self._units_of:
            raise ConfigError(
                f"register_forward_method: this {class_name(module)} is not a unit of the job; its "
                f"units are {', '.join(unit.name for unit in self._units)}"
            )
        method = getattr(module, name, None)
        if not callable(method):
            raise ConfigError(f"register_forward_method: {class_name(module)} has no method {name}")

        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            try:
                args, kwargs = self._before(module, args, kwargs)
                output = method(*args, **kwargs)
            except BaseException:
                self._after(module, args, None)
                raise
            return self._after(module, args, output)

        module.__dict__[name] = wrapped
        self._methods.append((module, name))

    def close(self) -> None:
        """End the reading; the model has no weights afterwards. May be repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        for hook in self._hooks:
            hook.remove()
        for module, name in self._methods:
            del module.__dict__[name]
        try:
            self.reset()
        finally:
            self._thread.close()

    # ---------------------------------------------------------------------- around a forward

    def _hooks_on(self, module: nn.Module) -> list[Any]:
        return [
            module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True),
            module.register_forward_hook(self._after, always_call=True),
        ]

    @uncompiled
    def _before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The module's units are needed; returns the inputs to use."""
        self._check_usable()
        self._check_mode(module)
        self._entered.append(module)
        for unit in self._units_of[module]:
            if not unit.is_here:
                self._bring(unit)
            unit.enter()
            if unit.casts_inputs:
                cast = functools.partial(_cast, unit.dtype)
                args, kwargs = map_tensors(cast, (args, kwargs))
        return args, kwargs

    @uncompiled
    def _after(self, module: nn.Module, args: object, output: Any) -> Any:
        """The module is done, or has failed; returns the output to use."""
        if not self._entered or self._entered[-1] is not module:
            return output  # it failed before its units were needed
        self._entered.pop()
        for unit in self._units_of[module]:
            if unit.depth == 0:
                continue  # it did not come
            unit.leave(module)
            output = map_tensors(functools.partial(_kept, unit), output)
            if unit.depth == 0 and len(unit.modules_run) == len(unit.modules):
                unit.remove()
        if not self._entered:  # of a unit of several modules, some may not have been called
            for unit in self._units:
                if unit.is_here:
                    unit.remove()
        self._read_ahead()
        return output

    def _bring(self, unit: ReadUnit) -> None:
        """Return when the unit is here."""
        if self._coming is not None and self._coming[0] is not unit:
            self._drop_coming()
        was_asked = self._coming is not None
        if not was_asked:
            self._ask(unit)
        assert self._coming is not None
        _, future = self._coming
        self.use_count += 1
        self.early_count += was_asked and future.done()
        try:
            future.result()
        except BaseException:
            self._drop_coming()
            raise
        self._coming = None
        unit.install()
        self._came_after[self._used] = unit
        self._used = (self._used[1], unit.index)
        self._read_ahead()

    def _read_ahead(self) -> None:
        """Begin to read what came next last time, if it is not here."""
        following = self._came_after.get(self._used)
        if not self._reads_ahead or self._coming is not None or self._thread.is_lost:
            return
        if following is not None and not following.is_here:
            self._ask(following)

    def _ask(self, unit: ReadUnit) -> None:
        self._coming = (unit, self._thread.fetch(unit.open()))
        self.bytes_read += unit.nbytes

    def _drop_coming(self) -> None:
        """Free what was read ahead, once nothing more is written to it."""
        if self._coming is None:
            return
        unit, future = self._coming
        future.exception()  # waits
        self._coming = None
        unit.remove()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise LuwuError("this reading is closed; call luwu.read_from again")

    def _check_mode(self, module: nn.Module) -> None:
        if torch.is_grad_enabled():
            raise LuwuError(
                f"{class_name(module)} was called with gradients on, but weights that are read are "
                "freed after use and cannot be trained: there is no backward. Call it under "
                "torch.no_grad() or torch.inference_mode(); to train, join the job with luwu.init"
            )
        if module.training:
            raise LuwuError(
                f"{class_name(module)} is in training mode, but a model that reads weights is only "
                "evaluated; call model.eval()"
            )


def _cast(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _kept(unit: ReadUnit, tensor: Tensor) -> Tensor:
    """An output that outlives the unit: a view of a weight is copied."""
    return tensor.clone() if unit.holds(tensor) else tensor


def _opener(source: Source) -> OpenSource:
    if isinstance(source, StateReader):
        return lambda: source
    if callable(source):
        return source
    from luwu.join.open import make_reader  # readers in threads of a test need no transport

    if isinstance(source, Connection):
        return lambda: make_reader(source)
    where = str(source)
    connection = join(where, timeout_s=_JOIN_S)
    return lambda: make_reader(connection, where=where)


def _may_refresh(source: Source) -> bool:
    return not isinstance(source, StateReader)
