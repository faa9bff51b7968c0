"""State dicts of a model in the network, in the shape of torch.distributed.checkpoint.state_dict.

    get_model_state_dict       the newest decided step, and this rank's buffers
    set_model_state_dict       first weights: before the first forward
    get_optimizer_state_dict   moments and counts of updates; the groups, by names
    set_optimizer_state_dict   hyper-parameters; first moments: before the first forward

What is returned is whole and in this process's memory, so it is rank 0's alone unless it is asked
for everywhere, as torch does it: StateDictOptions(full_state_dict=True). A model that is larger
than a worker goes through `luwu export` instead. A run that goes on from a state which has weights
takes no others: what is set is then used for buffers and hyper-parameters only.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from luwu.base.errors import ConfigError, StepOrderError
from luwu.nic.reader import FieldRead, StateReader
from luwu.optim.base import NetworkOptimizer
from luwu.training.base.names import Entry, buffers_kept, class_name, plain_name
from luwu.training.script.module import LuwuModule
from luwu.training.script.session import Session
from luwu.training.state.first_weights import GivenState
from luwu.training.units.placeholder import Placeholder
from luwu.wire.stored import AVERAGE, STEP, kept_fields, state_keys, stored_field

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

_NAMES_SHOWN_MAX = 5


_DEFAULTS = SimpleNamespace(
    full_state_dict=False, cpu_offload=False, ignore_frozen_params=False, strict=True
)
"""The defaults of torch's StateDictOptions, whose import takes half as long as torch's own."""


def get_model_state_dict(
    model: nn.Module, *, options: StateDictOptions | None = None, average: bool = False
) -> dict[str, Tensor]:
    """Return the weights of the newest decided step, and this rank's buffers.

    As torch's function of this name. Weights have the dtypes and shapes the model was made with and
    lie on the CPU. Waits until the last `step()` is decided. A model that is larger than a worker
    goes through `luwu export` instead.

    Args:
        model: A module that `fully_shard` was called on, or that has such modules.
        options: `full_state_dict` without `cpu_offload` returns the dict on all ranks;
            `ignore_frozen_params` leaves frozen parameters out.
        average: Return the average of the weights (`luwu.ema`, `luwu.swa`) in place of the weights;
            of frozen parameters the weights.

    Returns:
        Name to tensor, on rank 0; an empty dict on other ranks.

    Raises:
        ConfigError: If the model is not sharded, no average is kept, or an option cannot be
            honoured.
        StepAborted: If the last step was lost.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> {name: tuple(value.shape) for name, value in luwu.get_model_state_dict(model).items()}
        {'weight': (2, 4), 'bias': (2,)}
    """
    options = _checked(options)
    session = session_of_model(model)
    if not _returns_here(session, options):
        return {}
    entries = {entry.full_name: tensor for entry, tensor in _entries(model)}
    mine = set(map(id, entries.values()))
    wanted = [
        p.luwu_name for p in session.model.placeholders
        if id(p) in mine and (p.requires_grad or not options.ignore_frozen_params)
    ]  # fmt: skip
    with session.open_reader() as reader:
        values = _read(reader, AVERAGE if average else "weight", wanted)
    found: dict[str, Tensor] = {}
    for name, tensor in entries.items():
        if not isinstance(tensor, Placeholder):
            found[name] = tensor.detach()
        elif tensor.luwu_name in values:
            found[name] = values[tensor.luwu_name].to(tensor.dtype)
    return found


def set_model_state_dict(
    model: nn.Module, model_state_dict: Mapping[str, Any], *,
    options: StateDictOptions | None = None,
) -> None:  # fmt: skip
    """Set the model's first weights, and its buffers, from a state dict.

    Weights are taken from rank 0's dict, buffers from every rank's own; other ranks may give an
    empty dict. A run that resumes a state keeps its weights, and takes buffers only.

    Args:
        model: A module that `fully_shard` was called on, or that has such modules.
        model_state_dict: Name to tensor, as `get_model_state_dict` returns it.
        options: `strict=False` leaves out names that do not match.

    Raises:
        StepOrderError: After the first forward.
        ConfigError: If names or shapes do not match; the message lists them.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(2, 2))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> luwu.set_model_state_dict(model, {"weight": torch.eye(2), "bias": torch.zeros(2)})
        >>> model(torch.ones(1, 2)).tolist()
        [[1.0, 1.0]]
    """
    options = _checked(options)
    session = session_of_model(model)
    _check_not_begun(session, "set_model_state_dict")
    session.first_weights.has_state_dict = True
    if not model_state_dict and session.rank != 0:
        return
    entries = {entry.full_name: (entry, tensor) for entry, tensor in _entries(model)}
    problems = [f"{name} is missing" for name in entries.keys() - model_state_dict.keys()]
    problems += [f"{name} is unexpected" for name in model_state_dict.keys() - entries.keys()]
    for name in entries.keys() & model_state_dict.keys():
        expected, found = tuple(entries[name][1].shape), tuple(model_state_dict[name].shape)
        if expected != found:
            problems.append(f"{name} has shape {found}, expected {expected}")
    if problems and (options.strict or any("shape" in problem for problem in problems)):
        shown = "; ".join(sorted(problems)[:_NAMES_SHOWN_MAX])
        more = len(problems) - _NAMES_SHOWN_MAX
        raise ConfigError(
            f"set_model_state_dict: the dict is not that of this model: {shown}"
            + (f"; and {more} more" if more > 0 else "")
        )
    for name in entries.keys() & model_state_dict.keys():
        entry, tensor = entries[name]
        value = model_state_dict[name].detach()
        if not isinstance(tensor, Placeholder):
            entry.set(value, session.device)
        elif session.rank == 0 and not session.is_resumed:
            session.first_weights.given[id(tensor)] = value


def get_optimizer_state_dict(
    model: nn.Module, optimizers: NetworkOptimizer | Iterable[NetworkOptimizer], *,
    options: StateDictOptions | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the state and groups of one optimizer or several, by names of parameters.

    As torch's function of this name. Tensors are float32, on the CPU. Waits until the last `step()`
    is decided.

    Args:
        model: The sharded model.
        optimizers: The `luwu.optim` optimizer of the model, or several of the run.
        options: `full_state_dict` without `cpu_offload` returns the dict on all ranks.

    Returns:
        `{"state": {name: {"step", "exp_avg", ...}}, "param_groups": [...]}` on rank 0; an empty
        dict on other ranks. Parameters that were never updated have no state.

    Raises:
        ConfigError: If an optimizer is not that of the model, or an option cannot be honoured.
        StepAborted: If the last step was lost.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.AdamW(model.parameters(), lr=0.01)
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> result = optimizer.step()
        >>> state = luwu.get_optimizer_state_dict(model, optimizer)
        >>> sorted(state["state"]["weight"]), state["param_groups"][0]["lr"]
        (['exp_avg', 'exp_avg_sq', 'step'], 0.01)
    """
    options = _checked(options)
    session = session_of_model(model)
    groups = groups_by_name(checked_optimizers(session, optimizers))
    if not _returns_here(session, options):
        return {}
    trained = [name for group in groups for name in group["params"]]
    with session.open_reader() as reader:
        job = reader.description
        keys = {
            p.name: state_keys(job.optimizer, job.state_fields, whole=p.form.whole)
            for p in job.layout.parameters
        }
        values = {
            field: _read(reader, field, [n for n in trained if field in dict(keys[n]).values()])
            for field in job.state_fields
        }
        updates = _updates(reader, trained)
    state = {
        name: {
            key: torch.tensor(float(updates[name]), dtype=torch.float32)
            if field == STEP
            else values[field][name]
            for key, field in keys[name]
        }
        for name in trained
        if updates[name] and keys[name]
    }
    return {"state": state, "param_groups": groups}


def groups_by_name(optimizers: Iterable[NetworkOptimizer]) -> list[dict[str, Any]]:
    """The groups of the optimizers, with names in place of parameters."""
    return [
        {**group, "params": [p.luwu_name for p in group["params"]]}
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]


def model_template(model: nn.Module) -> dict[str, Tensor]:
    """A tensor for each parameter, without a value, and this rank's buffers."""
    return {
        entry.full_name: torch.zeros(tensor.shape, dtype=tensor.dtype)
        if isinstance(tensor, Placeholder)
        else tensor.detach()
        for entry, tensor in _entries(model)
    }


def set_optimizer_state_dict(
    model: nn.Module, optimizers: NetworkOptimizer | Iterable[NetworkOptimizer],
    optim_state_dict: Mapping[str, Any], *, options: StateDictOptions | None = None,
) -> None:  # fmt: skip
    """Set the groups' hyper-parameters, and the first state of one optimizer or several.

    Groups are taken on every rank, which must all give the same; the state from rank 0's dict. An
    empty dict keeps what the optimizer was made with. A run that resumes a state keeps its state.

    Args:
        model: The sharded model.
        optimizers: The `luwu.optim` optimizer of the model, or several of the run.
        optim_state_dict: As `get_optimizer_state_dict` returns it.
        options: As torch's; none of them changes anything here.

    Raises:
        StepOrderError: After the first forward.
        ConfigError: If groups or state do not match; the message lists what differs.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.AdamW(model.parameters(), lr=0.01)
        >>> groups = [{"params": ["weight", "bias"], "lr": 0.5}]
        >>> state = {"state": {}, "param_groups": groups}
        >>> luwu.set_optimizer_state_dict(model, optimizer, state)
        >>> optimizer.param_groups[0]["lr"]
        0.5
    """
    _checked(options)
    session = session_of_model(model)
    groups = [
        group for each in checked_optimizers(session, optimizers) for group in each.param_groups
    ]
    _check_not_begun(session, "set_optimizer_state_dict")
    if not optim_state_dict:
        return
    given = optim_state_dict["param_groups"]
    if len(given) != len(groups):
        raise ConfigError(
            f"set_optimizer_state_dict: {len(given)} groups are given, the optimizer has "
            f"{len(groups)}; make it with the same groups"
        )
    for ours, theirs in zip(groups, given, strict=True):
        names = {p.luwu_name for p in ours["params"]}
        if names != set(theirs["params"]):
            odd = sorted(map(str, names ^ set(theirs["params"])))[:_NAMES_SHOWN_MAX]
            raise ConfigError(
                f"set_optimizer_state_dict: the groups have other parameters: {', '.join(odd)}"
            )
        ours.update({k: v for k, v in theirs.items() if k in ours and k != "params"})
    if session.rank == 0 and not session.is_resumed and optim_state_dict["state"]:
        names = {p.luwu_name for group in groups for p in group["params"]}
        given_state = _given_state(session, names, optim_state_dict["state"])
        session.first_weights.give_state(given_state)


def _given_state(
    session: Session, names: Container[str], state: Mapping[str, Mapping[str, Any]]
) -> GivenState:
    trained = {p.name: p for p in session.layout.parameters if p.name in names}
    problems = [f"{name} is not trained here" for name in state.keys() - trained.keys()]
    update, kept = session.optimizers.name, session.optimizers.state_fields
    fields: dict[str, dict[str, Tensor]] = {each: {} for each in kept}
    for name in trained.keys() & state.keys():
        shape, whole = trained[name].shape, trained[name].form.whole
        for key, each in state_keys(update, kept, whole=whole):
            value = state[name].get(key)
            if each == STEP or (value is None and each == AVERAGE):
                continue  # an average begins with the weights
            if value is None or tuple(value.shape) != shape:
                problems.append(f"{name} has no {key} of shape {shape}")
            else:
                fields[each][name] = value
    # One without a state was never updated. An optimizer that counts no steps looks at nothing but
    # whether there was one.
    updates = dict.fromkeys(trained, 0)
    updates |= {name: int(each[STEP]) if STEP in each else 1 for name, each in state.items()}
    if problems:
        raise ConfigError(
            "set_optimizer_state_dict: the state is not that of this optimizer: "
            + "; ".join(sorted(problems)[:_NAMES_SHOWN_MAX])
        )
    return GivenState(fields, updates, kept_fields(update, kept, whole=True))


def _read(reader: StateReader, field: str, names: list[str]) -> dict[str, Tensor]:
    """One float32 field of these parameters; one unit's chunks are here besides them."""
    job = reader.description
    layout = job.layout
    index_of = {p.name: index for index, p in enumerate(layout.parameters)}
    wanted = {index_of[name] for name in names}
    found = {
        index: torch.empty(layout.parameters[index].shape, dtype=torch.float32) for index in wanted
    }
    for unit in range(len(layout.units)):
        chunks = [
            index for index in layout.unit_chunks[unit]
            if any(s.parameter in wanted for s in layout.segments(index))
        ]  # fmt: skip
        flats = {
            index: torch.empty(layout.chunks[index].elems, dtype=torch.float32) for index in chunks
        }
        fields = {i: stored_field(job, field, trainable=layout.chunks[i].trainable) for i in chunks}
        reader.read(FieldRead(i, fields[i], _bytes(flat)) for i, flat in flats.items())
        for index, flat in flats.items():
            for s in layout.segments(index):
                if s.parameter in wanted:
                    into = found[s.parameter].view(-1)[s.parameter_start :][: s.elems]
                    into.copy_(flat[s.chunk_start : s.chunk_start + s.elems])
    return {name: found[index_of[name]] for name in names}


def _updates(reader: StateReader, names: list[str]) -> dict[str, int]:
    """The number of updates of each parameter."""
    layout = reader.description.layout
    counts = {
        index: torch.zeros(layout.segments_count(index), dtype=torch.int64)
        for index, chunk in enumerate(layout.chunks)
        if chunk.trainable
    }
    reader.read(FieldRead(index, "updates", _bytes(count)) for index, count in counts.items())
    found = {
        layout.parameters[segment.parameter].name: count
        for index in counts
        for segment, count in zip(layout.segments(index), counts[index].tolist(), strict=True)
    }
    return {name: found.get(name, 0) for name in names}


def _bytes(tensor: Tensor) -> memoryview:
    view: memoryview = tensor.view(torch.uint8).numpy().data
    return view


def _entries(model: nn.Module) -> Iterator[tuple[Entry, Tensor]]:
    """Parameters and persistent buffers as state_dict() names them, and the tensor of each."""
    # What is here now, in the dtype of compute, will be freed: its placeholder stands for it.
    away = {
        id(parameter): member.placeholder
        for unit in session_of_model(model).units
        if unit.is_installed
        for member, parameter in zip(unit.members, unit.weights.parameters, strict=True)
    }
    for prefix, module in model.named_modules(remove_duplicate=False):
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise ConfigError(
                f"{class_name(module)} has an extra state, which is not a tensor; keep it with "
                "luwu.attach, or in a file of your own"
            )
        parameters = [
            Entry(module, name, f"{prefix}.{name}" if prefix else name)
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        for entry in (*parameters, *buffers_kept(prefix, module)):
            tensor = away.get(id(entry.value), entry.value)
            yield entry._replace(full_name=plain_name(entry.full_name)), tensor


def _returns_here(session: Session, options: StateDictOptions) -> bool:
    is_here = session.rank == 0 or (options.full_state_dict and not options.cpu_offload)
    if not is_here:
        session.attend()
    return is_here


def _checked(options: StateDictOptions | None) -> StateDictOptions:
    if options is None:
        return cast("StateDictOptions", _DEFAULTS)
    if options.flatten_optimizer_state_dict:
        raise ConfigError(
            "flatten_optimizer_state_dict: the optimizer's state is returned by parameter here; "
            "leave it out"
        )
    return options


def _check_not_begun(session: Session, what: str) -> None:
    if session.progress.is_begun:
        raise StepOrderError(
            f"{what} after the first forward: the weights are in the network and only the "
            "optimizer changes them. Call it before, or start a new run"
        )


def checked_optimizers(
    session: Session, given: NetworkOptimizer | Iterable[NetworkOptimizer]
) -> list[NetworkOptimizer]:
    """The optimizers as a list. Raises ConfigError unless they are those of this session."""
    optimizers: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for each in optimizers:
        if not isinstance(each, NetworkOptimizer) or each._session is not session:
            raise ConfigError("give the luwu.optim optimizer that was made for this model")
    session.settle()
    return optimizers


def session_of_model(model: nn.Module) -> Session:
    """The session that the model's weights are in. Raises ConfigError if it is not sharded."""
    found = next((m for m in model.modules() if isinstance(m, LuwuModule)), None)
    if found is None:
        raise ConfigError("luwu.fully_shard was not called on this model: use its own state_dict()")
    return found.luwu_session
