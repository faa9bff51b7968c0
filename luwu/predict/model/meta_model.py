"""A PyTorch module as numbers: run on the meta device, where tensors have shapes and no values.

`count` tells of any module how many parameters it has and what its matrix products are; `model_of`
finds the decoder of equal layers (`model.py`) that has the same, or says why there is none:

    layers       the longest list of modules whose parameters have equal shapes
    hidden       the width of what a layer is given
    attention    its matrices are those of the smallest module that calls torch's attention, which
                 tells heads too: 2 h (heads + heads of keys) head width
    MLP          the layer's other matrices: 2 h f, or 3 h f where it is gated
    vocabulary   from the products outside of layers: 2 h V for each token
    the rest     positions, norms, biases: counted, so that parameters are exact

Products are counted at two lengths, and M1 and M2 have to give both; a module that computes
anything else, or whose experts choose by values, is refused. Nothing of the module is changed or
run on values. torch is imported when a function is called, and only here in this package.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from luwu.base.errors import ConfigError
from luwu.predict.hardware.model import Transformer

if TYPE_CHECKING:
    from torch import nn

LENGTHS: Final = (16, 32)
"""Tokens of the two sequences that are counted."""
TOLERANCE: Final = 1e-9
"""Of operations: both are whole numbers."""
_SMALL: Final = 0.02
"""Of a layer's parameters, what norms and biases may differ by from those of the closed form."""

Inputs = Callable[[int], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a module is and does."""

    parameters: int
    """Shared ones once."""
    operations: int
    """Of all matrix products of a forward, two for each multiplication and addition."""
    by_module: dict[str, int]
    """Of each module that has products, those within it."""


def count(module: nn.Module, *inputs: Any) -> Counted:
    """Run a module on the meta device. Raises ConfigError where its products depend on values.

    `inputs` are what it is called with; tensors among them need shapes alone.
    """
    with _counting() as counter:
        _run(module, inputs)
    found = counter.get_flop_counts()
    own = type(module).__name__ + "."
    return Counted(
        parameters=_parameters(module), operations=counter.get_total_flops(),
        by_module={
            name.removeprefix(own): sum(each.values())
            for name, each in found.items()
            if name.startswith(own)
        },
    )  # fmt: skip


def model_of(
    module: nn.Module,
    *,
    name: str,
    inputs: Inputs | None = None,
    layers: str | None = None,
    lengths: tuple[int, int] = LENGTHS,
) -> Transformer:
    """The decoder that a module is. Raises ConfigError where it is none of equal layers.

    `inputs` makes what the module is called with for a sequence of so many tokens, one sequence;
    without it, numbers of tokens. `layers` names the list of layers, where several could be it.
    """
    seen = [_Seen(), _Seen()]
    place, blocks = _layers_of(module, layers)
    counted = [
        _count_parts(module, blocks, (inputs or _token_ids)(length), each)
        for length, each in zip(lengths, seen, strict=True)
    ]
    found = _transformer(module, name, place, blocks, counted[0], seen[0], lengths[0])
    for length, (inside, outside) in zip(lengths, counted, strict=True):
        expected = found.layers * found.layer_operations(length, length)
        expected += found.head_operations(length)
        if abs(expected - inside - outside) > TOLERANCE * expected:
            raise ConfigError(
                f"{name}: {inside + outside:,} operations for {length} tokens are not the "
                f"{expected:,.0f} of a decoder of {found.layers} layers, {found.hidden} wide, with "
                f"{found.heads} heads and an MLP of {found.ffn}; it is of another kind"
            )
    return found


# ---------------------------------------------------------------------- running


@dataclass(slots=True)
class _Seen:
    """What a run told of the first layer."""

    hidden: int = 0
    heads: int = 0
    head_width: int = 0
    attention: Any = None
    """The module that called attention."""
    stack: list[Any] = field(default_factory=list)


def _token_ids(length: int) -> tuple[Any, ...]:
    import torch

    return (torch.zeros(1, length, dtype=torch.int64, device="meta"),)


@contextlib.contextmanager
def _counting() -> Iterator[Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    # Attention as products, which are counted; a kernel of the machine that this runs on may not be
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        yield counter


def _run(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Forward without values, without dropout, and without touching the module's tensors."""
    import torch
    from torch.func import functional_call

    def on_meta(value: Any) -> Any:
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    tensors = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    was_training = {each: each.training for each in module.modules()}
    module.eval()
    try:
        with torch.no_grad(), torch.device("meta"):
            functional_call(
                module, {key: on_meta(each) for key, each in tensors.items()},
                tuple(on_meta(each) for each in inputs),
            )  # fmt: skip
    except (RuntimeError, NotImplementedError, TypeError) as exc:
        raise ConfigError(
            f"{type(module).__name__}: cannot be run without values: {exc}; what it computes must "
            "depend on shapes alone"
        ) from exc
    finally:
        for each, training in was_training.items():
            each.training = training


def _count_parts(
    module: nn.Module, blocks: list[nn.Module], inputs: tuple[Any, ...], seen: _Seen
) -> tuple[int, int]:
    """Operations in all layers, and outside of them; what the first layer has is noted."""
    inside, started = 0, 0

    def enter(_module: Any, _inputs: Any) -> None:
        nonlocal started
        started = counter.get_total_flops()

    def leave(_module: Any, _inputs: Any, _output: Any) -> None:
        nonlocal inside
        inside += counter.get_total_flops() - started

    with contextlib.ExitStack() as stack, _counting() as counter:
        for block in blocks:
            stack.callback(block.register_forward_pre_hook(enter).remove)
            stack.callback(block.register_forward_hook(leave).remove)
        for each in blocks[0].modules():
            stack.callback(each.register_forward_pre_hook(_pusher(seen)).remove)
            stack.callback(each.register_forward_hook(_popper(seen)).remove)
        stack.enter_context(_watching(seen))
        _run(module, inputs)
    return inside, counter.get_total_flops() - inside


def _pusher(seen: _Seen) -> Callable[[Any, Any], None]:
    def push(module: Any, _inputs: Any) -> None:
        seen.stack.append(module)

    return push


def _popper(seen: _Seen) -> Callable[[Any, Any, Any], None]:
    def pop(_module: Any, _inputs: Any, output: Any) -> None:
        seen.stack.pop()
        if not seen.stack:
            seen.hidden = (output[0] if isinstance(output, tuple) else output).shape[-1]

    return pop


def _watching(seen: _Seen) -> Any:
    """Note the shapes that torch's attention is called with in the first layer."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    class Watching(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is functional.scaled_dot_product_attention and seen.stack and not seen.heads:
                query = kwargs["query"] if kwargs and "query" in kwargs else args[0]
                seen.heads, seen.head_width = query.shape[-3], query.shape[-1]
                seen.attention = next(one for one in reversed(seen.stack) if _matrices(one))
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

    return Watching()


# ---------------------------------------------------------------------- what it is


def _parameters(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def _matrices(module: nn.Module) -> int:
    """Elements of all parameters of two dimensions or more."""
    return sum(each.numel() for each in module.parameters() if each.dim() > 1)


def _layers_of(module: nn.Module, asked: str | None) -> tuple[str, list[nn.Module]]:
    from torch import nn

    lists = {
        name: list(each) for name, each in module.named_modules()
        if isinstance(each, nn.ModuleList | nn.Sequential) and len(each) and _is_even(list(each))
    }  # fmt: skip
    if asked is not None:
        if asked not in lists:
            raise ConfigError(
                f"layers: {asked!r} is no list of modules whose parameters have equal shapes; "
                f"such are {', '.join(lists) or 'none'}"
            )
        return asked, lists[asked]
    if not lists:
        raise ConfigError(
            "layers: no list of modules whose parameters have equal shapes; a decoder has its "
            "layers in an nn.ModuleList"
        )
    longest = max(len(each) for each in lists.values())
    names = [name for name, each in lists.items() if len(each) == longest]
    if len(names) > 1:
        raise ConfigError(f"layers: several lists are equally long: {', '.join(names)}; name one")
    return names[0], lists[names[0]]


def _is_even(modules: list[nn.Module]) -> bool:
    shapes = [[each.shape for each in one.parameters()] for one in modules]
    return bool(shapes[0]) and all(each == shapes[0] for each in shapes)


def _transformer(
    module: nn.Module, name: str, place: str, blocks: list[nn.Module], counted: tuple[int, int],
    seen: _Seen, length: int,
) -> Transformer:  # fmt: skip
    from torch import nn

    if seen.attention is None or seen.attention is blocks[0]:
        raise ConfigError(
            f"{name}: {place} has no module of its own that calls torch's "
            "scaled_dot_product_attention, which tells heads"
        )
    hidden, width = seen.hidden, seen.head_width
    kv_heads, rest = divmod(_matrices(seen.attention), 2 * hidden * width)
    kv_heads -= seen.heads
    if rest or kv_heads < 1 or seen.heads % kv_heads:
        raise ConfigError(
            f"{name}: the matrices of {type(seen.attention).__name__} are not those of "
            f"{seen.heads} heads of {width} and of fewer or as many of keys and values"
        )
    ffn, matrices = _mlp_of(name, blocks[0], seen.attention, hidden)
    vocab, rest = divmod(counted[1], 2 * hidden * length)
    inside = {id(each) for block in blocks for each in block.parameters()}
    tables = [
        each for each in module.parameters()
        if tuple(each.shape) == (vocab, hidden) and id(each) not in inside
    ]  # fmt: skip
    if rest or not vocab or not tables:
        raise ConfigError(f"{name}: its products outside of {place} are no output layer")
    found = Transformer(
        name=name, layers=len(blocks), hidden=hidden, heads=seen.heads, kv_heads=kv_heads, ffn=ffn,
        gated=matrices == 3, vocab=vocab, tied=len(tables) == 1, head_width=width,
        dropout=any(isinstance(each, nn.Dropout) and each.p > 0 for each in blocks[0].modules()),
    )  # fmt: skip
    layer = _parameters(blocks[0])
    if abs(layer - found.layer_parameters) > _SMALL * layer + 8 * hidden:
        raise ConfigError(
            f"{name}: a layer has {layer:,} parameters, not about the {found.layer_parameters:,} "
            "of attention and an MLP"
        )
    return dataclasses.replace(found, other_parameters=_parameters(module) - found.parameters)


def _mlp_of(name: str, block: nn.Module, attention: nn.Module, hidden: int) -> tuple[int, int]:
    """Inner width, and how many matrices of hidden x inner there are."""
    own = {id(each) for each in attention.parameters()}
    others = [each for each in block.parameters() if each.dim() > 1 and id(each) not in own]
    down = Counter(each.shape[1] for each in others if each.dim() == 2 and each.shape[0] == hidden)
    for ffn in sorted(down, reverse=True):
        matrices, rest = divmod(sum(each.numel() for each in others), hidden * ffn)
        if not rest and matrices in (2, 3):
            return ffn, matrices
    raise ConfigError(f"{name}: a layer has no MLP of two or three matrices beside its attention")


# ---------------------------------------------------------------------- as a file


def to_toml(model: Transformer, source: str = "measured on the meta device") -> str:
    """An entry of a catalogue file, for `--catalogue` and questions."""
    lines = [f'[model."{model.name}"]']
    for each in dataclasses.fields(model):
        value = getattr(model, each.name)
        if each.name == "name" or value == each.default:
            continue
        lines.append(f"{each.name} = {str(value).lower()}")
    return "\n".join([*lines, f'source = "{source}"', ""])


def write(model: Transformer, path: Path, source: str = "measured on the meta device") -> None:
    """The same into a new file. Raises ConfigError where there is one."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(to_toml(model, source))
    except FileExistsError as exc:
        raise ConfigError(f"{path}: exists; take another name") from exc
