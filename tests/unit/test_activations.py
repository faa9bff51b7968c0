"""`luwu.offload_activations` on plain torch modules: the bits of torch, whatever is saved."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import luwu
from luwu.base.errors import ConfigError, LuwuError, StateError, StoreFullError
from luwu.nic.saved import ActivationStats
from luwu.training import offload
from luwu.training.saved_tensors import Left
from luwu.training.storages import Storages
from tests.unit.test_activations_store import is_soon
from tests.unit.test_scratch_file import file_limit
from tests.unit.test_training_equality import gpt_config, gpt_loss, make_gpt
from tests.unit.training_harness import one_thread  # noqa: F401 - for every test here

KIB = 1024
KINDS = ["none", "reentrant", "nonreentrant"]


def offloaded(module: Any, directory: Path, memory_budget: str | int = 0, **more: Any) -> Any:
    arguments = {"memory_budget": memory_budget, "directory": directory, "min_bytes": 256, **more}
    return luwu.offload_activations(module, **arguments)


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def same(found: list[Tensor | None], expected: list[Tensor | None]) -> bool:
    """Bit for bit."""
    return len(found) == len(expected) and all(
        a is b if a is None or b is None else torch.equal(a, b)
        for a, b in zip(found, expected, strict=True)
    )


def compare(
    make: Callable[[], nn.Module], run: Callable[[nn.Module], Any], directory: Path, **more: Any
) -> ActivationStats:
    """Gradients and results of `run` are the same with and without; what was done for it."""
    plain, moved = make(), offloaded(make(), directory, **more)
    expected, found = run(plain), run(moved)
    assert same(gradients(moved), gradients(plain))
    if expected is not None:
        assert torch.equal(found, expected)
    stats = luwu.activation_stats(moved)
    assert stats.saved_bytes > 0
    nothing_is_left(moved, directory)
    return stats


def nothing_is_left(module: nn.Module, directory: Path) -> None:
    """A3, after the graph is gone."""
    gc.collect()
    store = module.__dict__["luwu_offload"].store
    assert store.stats().live_bytes == 0
    assert is_soon(lambda: store._thread is None)
    assert store.stats().waiting_bytes == 0
    assert list(directory.iterdir()) == []


class Function(nn.Module):
    """A module around a function of (weight, input)."""

    def __init__(self, fn: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.weight = nn.Parameter(torch.randn(32, 32))
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.weight, x)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(9))


def once(module: nn.Module) -> Tensor:
    """One forward and backward."""
    x = numbers(48, 32).requires_grad_()
    y = module(x)
    y.square().sum().backward()
    assert x.grad is not None
    return x.grad


def of(fn: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Function(fn)


# ---------------------------------------------------------------------------- training


@pytest.mark.feature("offload_activations")
@pytest.mark.parametrize("memory_budget", [0, "20KiB", "1GiB"])
@pytest.mark.parametrize("checkpointing", KINDS)
def test_a_gpt_trains_with_the_same_bits(
    tmp_path: Path, checkpointing: Any, memory_budget: Any
) -> None:
    """Goal: losses and weights of four steps with AdamW and dropout, bit for bit; beyond the budget
    it goes to disk, within it nothing does."""
    config = gpt_config(checkpointing=checkpointing, dropout=0.2)
    found = []
    for moves in (False, True):
        model: Any = make_gpt(config)
        if moves:
            offloaded(model, tmp_path, memory_budget)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        losses = []
        for step in range(4):
            torch.manual_seed(step)
            loss = gpt_loss(model, step, 0, 0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        found.append((losses, [p.detach().clone() for p in model.parameters()]))
    assert found[0][0] == found[1][0]
    assert all(map(torch.equal, found[0][1], found[1][1]))
    stats = luwu.activation_stats(model)
    assert (stats.written_bytes > 0) == (memory_budget != "1GiB")
    del loss
    nothing_is_left(model, tmp_path)


@pytest.mark.parametrize("checkpointing", ["reentrant", "nonreentrant"])
def test_only_inputs_of_blocks_are_saved(tmp_path: Path, checkpointing: Any) -> None:
    """Goal: with checkpoints, an input a block, and what the model does outside of its blocks."""
    model: Any = make_gpt(gpt_config(checkpointing=checkpointing, layers=7))
    offloaded(model, tmp_path)
    ids = torch.zeros(2, 16, dtype=torch.int64)
    model(ids).sum().backward()
    x_bytes = 4 * 2 * 16 * 64
    ids_bytes, outside_bytes = 8 * 2 * 16, 2 * x_bytes  # of tokens; inputs of norm and head
    assert luwu.activation_stats(model).saved_bytes == 7 * x_bytes + outside_bytes + ids_bytes


def test_memory_is_what_it_says(tmp_path: Path) -> None:
    """Goal: a checkpointed model whose inputs of blocks take 192 MiB trains in 96 MiB, which the
    kernel enforces; without luwu.offload_activations it does not."""
    for moves in (False, True):
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, str(tmp_path), str(moves)],
            capture_output=True, text=True, timeout=100, check=False,
            cwd=Path(__file__).parents[2],
            # What is freed goes back to the kernel; else holes in the heap would count too.
            env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1048576"},
        )  # fmt: skip
        assert done.stdout == ("trained\n" if moves else "beyond the limit\n"), done.stderr


LIMITED = """
import resource, sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
import luwu

torch.set_num_threads(1)
class Block(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 1.5

class Model(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = x * self.scale
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x

def train(count, elems):
    model = Model(count)
    if sys.argv[2] == "True":
        luwu.offload_activations(model, memory_budget="8MiB", directory=sys.argv[1])
    model(torch.ones(elems)).sum().backward()

train(2, 1 << 20)  # threads are there, and what torch imports late
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line[:6] == "VmData")
limit = used * 1024 + (96 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    train(24, 2 << 20)
    print("trained")
except (MemoryError, RuntimeError) as error:
    assert "alloc" in str(error), error
    print("beyond the limit")
"""


# ---------------------------------------------------------------------------- which tensors


def test_views_that_share_a_storage_go_once(tmp_path: Path) -> None:
    """Goal: q, k and v of one product, permuted, and the same tensor saved by three operations."""

    def fn(weight: Tensor, x: Tensor) -> Tensor:
        qkv = (x @ weight.repeat(1, 3)).view(48, 3, 4, 8).permute(1, 2, 0, 3)
        q, k, v = qkv.unbind(0)
        return (q * k * v + q * q).sum(-1)

    stats = compare(of(fn), once, tmp_path)
    x, weight, qkv, one = 48 * 32 * 4, 32 * 96 * 4, 48 * 96 * 4, 48 * 32 * 4
    # x, the repeated weight, qkv once for five views, q * k
    assert stats.saved_bytes == x * 0 + weight + qkv + one


@pytest.mark.parametrize("memory_budget", [0, "1GiB"])
def test_strides_are_as_they_were(tmp_path: Path, memory_budget: Any) -> None:
    """Goal: transposed, sliced with steps, flipped, expanded, overlapping and scalar views."""

    def fn(weight: Tensor, x: Tensor) -> Tensor:
        y = torch.tanh(x @ weight)
        wide = y.unfold(0, 4, 1)  # overlaps
        parts = [y.t()[:, ::3], y[1:, 5:], y[:1].expand(48, 32), y.flip(0), wide, y[3, 7]]
        total = torch.zeros(())
        for part in parts:
            total = total + (part * part.exp()).sum()
        return total

    compare(of(fn), once, tmp_path, memory_budget=memory_budget)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    def fn(weight: Tensor, x: Tensor) -> Tensor:
        y = x.to(dtype) * weight.to(dtype).repeat(2, 1)[:48]
        mask = (y.abs() > 0.5) if dtype.is_complex else (y > 0.5)
        return (torch.where(mask, y.sin(), y * y)).abs().float()

    compare(of(fn), once, tmp_path)


def test_a_row_of_a_large_tensor_goes_alone(tmp_path: Path) -> None:
    """Goal: of the data set, of which the input is a view, only the row goes."""
    data = numbers(1000, 32)
    model = offloaded(nn.Linear(32, 8), tmp_path)
    plain = copy.deepcopy(model)
    for each in (model, plain):
        each(data[500:510]).sum().backward()
    assert same(gradients(model), gradients(plain))
    assert luwu.activation_stats(model).saved_bytes == 10 * 32 * 4


def test_what_stays(tmp_path: Path) -> None:
    """Goal: parameters and views of them, buffers, small tensors, sparse and conjugated ones and
    leaves that need a gradient are not moved, and give the same bits."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.weight = nn.Parameter(torch.randn(32, 32))
            self.register_buffer("scale", numbers(32, 32))

        def forward(self, x: Tensor) -> Tensor:
            y = self.weight * self.scale + self.weight.t() * self.weight.detach()[:, :30].sum()
            z = torch.sparse.mm(self.weight.detach().relu().to_sparse(), y.sum(0, keepdim=True).t())
            return (x * self.scale[:1]).sum() * (z * x[0, 0]).sum() + (x * x).sum() * y[0, 0]

    model = Model()
    kept = Storages([*model.parameters(), *model.buffers()])
    saver = offloaded(model, tmp_path).__dict__["luwu_offload"]._saved
    for tensor in (
        model.weight, model.weight.t(), model.weight.detach()[3:], model.scale, torch.zeros(3),
        torch.eye(64).to_sparse(), torch.randn(64, 64, dtype=torch.complex64).conj(),
        numbers(64, 64).requires_grad_(), numbers(64, 64).requires_grad_().t(),
        torch.zeros(64, 64, device="meta"), torch.nested.nested_tensor([numbers(64, 64)]),
        nn.Parameter(numbers(64, 64))[:60],
    ):  # fmt: skip
        packed = saver.pack(kept, tensor)
        assert isinstance(packed, Left), tensor
        assert packed.tensor is not tensor
    plain = Model()
    for each in (model, plain):
        x = numbers(48, 32).requires_grad_()
        each(x).backward()
    assert same(gradients(model), gradients(plain))


def test_equal_bytes_of_two_tensors_are_two(tmp_path: Path) -> None:
    """Goal: a tensor that looks like another one does not depend on what becomes of that one."""
    model = offloaded(nn.Identity(), tmp_path, memory_budget="1GiB")
    saver, kept = model.__dict__["luwu_offload"]._saved, Storages()
    one, other = torch.zeros(1000), torch.zeros(1000)
    packed = [saver.pack(kept, one), saver.pack(kept, other)]
    one.add_(1)
    with pytest.raises(LuwuError, match="changed in place"):
        saver.unpack(packed[0])
    assert torch.equal(saver.unpack(packed[1]), other)


def test_memory_that_was_filled_anew_is_saved_anew(tmp_path: Path) -> None:
    """Goal: a buffer of numpy's, filled for each batch behind torch's back, gives each graph the
    bytes it had. Method: the graph of the first batch is still there, its bytes on disk."""
    model, plain = offloaded(nn.Linear(32, 32), tmp_path), nn.Linear(32, 32)
    plain.load_state_dict(model.state_dict())
    buffer = numbers(64, 32).numpy()
    x = torch.from_numpy(buffer)
    first = model(x)
    store = model.__dict__["luwu_offload"].store
    assert is_soon(lambda: store.stats().waiting_bytes == 0)
    expected = plain(x.clone())
    expected.square().sum().backward()
    buffer[:] = numbers(64, 32).numpy() * 2
    model(x).sum()  # its graph goes
    again = model(x)
    first.square().sum().backward()
    assert same(gradients(model), gradients(plain))
    plain(x).square().sum().backward()
    again.square().sum().backward()
    assert same(gradients(model), gradients(plain))


# ---------------------------------------------------------------------------- changed in place


@pytest.mark.parametrize("memory_budget", [0, "1GiB"])
def test_a_change_in_place_raises_or_does_not_matter(tmp_path: Path, memory_budget: Any) -> None:
    """Goal: where torch refuses, for the value is needed, we refuse too or have the value still.
    Method: change a large tensor (in memory, or on disk by then) and a small one."""

    def fn(weight: Tensor, x: Tensor) -> Tensor:
        y = x @ weight
        z = y * y
        y.add_(1)
        return z

    model = offloaded(Function(fn), tmp_path, memory_budget)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        once(Function(fn))
    try:
        found = once(model)
    except LuwuError as error:
        assert "changed in place" in str(error)  # noqa: PT017 - one of two outcomes
    else:
        assert not memory_budget
        assert torch.equal(found, once(Function(lambda weight, x: (x @ weight).square())))
    small = offloaded(Function(fn), tmp_path, min_bytes="1MiB")
    with pytest.raises(LuwuError, match=r"shape \(48, 32\) .* changed in place .*\(version 1,"):
        once(small)


# ---------------------------------------------------------------------------- graphs


@pytest.mark.parametrize("checkpointing", KINDS)
def test_backward_twice(tmp_path: Path, checkpointing: Any) -> None:
    """Goal: a retained graph is unpacked twice; gradients add up as ever."""

    def run(model: nn.Module) -> None:
        loss = gpt_loss(model, 0, 0, 0)
        loss.backward(retain_graph=True)
        loss.backward()

    compare(lambda: make_gpt(gpt_config(checkpointing=checkpointing)), run, tmp_path)


def test_backward_of_backward(tmp_path: Path) -> None:
    """Goal: create_graph; the second backward goes through what the first one unpacked."""

    def run(model: nn.Module) -> Tensor:
        x = numbers(48, 32).requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        grad.square().sum().backward()
        return grad.detach()

    compare(of(lambda weight, x: torch.tanh(x @ weight) ** 3), run, tmp_path)


@pytest.mark.parametrize("checkpointing", KINDS)
@pytest.mark.parametrize("is_first_first", [True, False])
def test_two_forwards_before_their_backwards(
    tmp_path: Path, checkpointing: Any, is_first_first: bool
) -> None:
    def run(model: nn.Module) -> None:
        losses = [gpt_loss(model, 0, 0, 0), gpt_loss(model, 1, 0, 0)]
        for loss in losses if is_first_first else losses[::-1]:
            loss.backward()

    compare(lambda: make_gpt(gpt_config(checkpointing=checkpointing)), run, tmp_path)


@pytest.mark.parametrize("checkpointing", KINDS)
def test_a_graph_that_is_dropped(tmp_path: Path, checkpointing: Any) -> None:
    """A3. Goal: no backward, or a part of one: everything is given back as the graph goes."""
    model: Any = make_gpt(gpt_config(checkpointing=checkpointing))
    offloaded(model, tmp_path)
    loss = gpt_loss(model, 0, 0, 0)
    assert luwu.activation_stats(model).live_bytes > 0
    del loss
    nothing_is_left(model, tmp_path)
    loss = gpt_loss(model, 0, 0, 0)
    torch.autograd.grad(loss, model.head.weight, retain_graph=True) if checkpointing != (
        "reentrant"
    ) else None
    del loss
    nothing_is_left(model, tmp_path)
    loss = gpt_loss(model, 0, 0, 0)
    file = model.__dict__["luwu_offload"].store._file
    open_files = len(os.listdir("/proc/self/fd"))
    del model
    loss.backward()  # the graph keeps what it needs
    del loss, file
    gc.collect()
    assert is_soon(lambda: len(os.listdir("/proc/self/fd")) == open_files - 1)


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_error_in_forward(tmp_path: Path, reentrant: bool) -> None:
    """Goal: the hooks are gone, also from nested modules, and so is what was saved."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.fails = offloaded(nn.Linear(32, 32), tmp_path), True

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(torch.tanh, self.layer(x), use_reentrant=reentrant)
            if self.fails:
                raise ValueError("as planned")
            return y * y

    model = offloaded(Model(), tmp_path)
    try:
        model(numbers(48, 32))
    except ValueError:
        pass
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    nothing_is_left(model, tmp_path)
    nothing_is_left(model.layer, tmp_path)
    model.fails = False
    model(numbers(48, 32)).sum().backward()
    assert model.layer.weight.grad is not None


def test_an_error_in_backward(tmp_path: Path) -> None:
    """Goal: an error in the middle; what the graph held is given back with it."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise ValueError("as planned")

    model = offloaded(
        Function(lambda weight, x: torch.tanh(Fails.apply(torch.tanh(x @ weight)))), tmp_path
    )
    try:
        once(model)
    except ValueError:
        pass
    nothing_is_left(model, tmp_path)


def test_several_threads(tmp_path: Path) -> None:
    """Goal: one module, used by three threads at once."""
    model, expected = offloaded(make_gpt(gpt_config()), tmp_path), make_gpt(gpt_config())
    for part in range(3):
        gpt_loss(expected, 0, 0, part).backward()
    found: list[Any] = [None] * 3

    def work(part: int) -> None:
        loss = gpt_loss(model, 0, 0, part)
        found[part] = torch.autograd.grad(loss, list(model.parameters()))

    workers = [threading.Thread(target=work, args=(part,)) for part in range(3)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)
    sums = [a + b + c for a, b, c in zip(*found, strict=True)]
    assert same(sums, gradients(expected))
    nothing_is_left(model, tmp_path)


def test_no_grad_and_eval(tmp_path: Path) -> None:
    """Goal: without a graph nothing is saved."""
    model = offloaded(make_gpt(gpt_config(checkpointing="nonreentrant")), tmp_path)
    with torch.no_grad():
        gpt_loss(model, 0, 0, 0)
    with torch.inference_mode():
        gpt_loss(model.eval(), 0, 0, 0)
    assert luwu.activation_stats(model).saved_bytes == 0


@pytest.mark.parametrize("checkpointing", KINDS)
def test_compiled_blocks(tmp_path: Path, checkpointing: Any) -> None:
    """Goal: the inputs of compiled blocks that are checkpointed go as ever."""

    def make() -> nn.Module:
        model: Any = make_gpt(gpt_config(checkpointing=checkpointing))
        for block in model.blocks:
            block.compile(backend="aot_eager")
        return model

    stats = compare(make, lambda model: gpt_loss(model, 0, 0, 0).backward(), tmp_path)
    assert stats.saved_bytes >= 3 * 4 * 2 * 16 * 64


def test_a_compiled_model(tmp_path: Path) -> None:
    """Goal: the same bits; what the compiled graph keeps for itself is its own."""
    model, plain = offloaded(make_gpt(gpt_config()), tmp_path), make_gpt(gpt_config())
    for each in (model, plain):
        compiled: Any = torch.compile(each, backend="aot_eager")
        gpt_loss(compiled, 0, 0, 0).backward()
    assert same(gradients(model), gradients(plain))
    nothing_is_left(model, tmp_path)


@pytest.mark.parametrize("reentrant", [True, False])
def test_nested_checkpoints(tmp_path: Path, reentrant: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

        def pair(self, x: Tensor) -> Tensor:
            return torch.tanh(self.layers[1](torch.tanh(self.layers[0](x))))

        def forward(self, x: Tensor) -> Tensor:
            def outer(x: Tensor) -> Tensor:
                y = checkpoint(self.pair, x, use_reentrant=reentrant)
                return torch.tanh(self.layers[2](y))

            y = checkpoint(outer, x.tanh(), use_reentrant=reentrant)
            return self.layers[3](y)

    compare(Model, once, tmp_path)


# ---------------------------------------------------------------------------- faults, refusals


def test_a_full_disk_and_after_it(tmp_path: Path) -> None:
    """I6. Goal: an error that says what to do, out of forward or backward; afterwards it works."""
    model: Any = offloaded(make_gpt(gpt_config(checkpointing="nonreentrant", layers=8)), tmp_path)
    plain = make_gpt(gpt_config(checkpointing="nonreentrant", layers=8))
    try:
        with file_limit(20_000):
            gpt_loss(model, 0, 0, 0).backward()
        raise AssertionError("the disk was full, and nobody said so")
    except StoreFullError as error:
        assert f"{tmp_path} cannot grow from" in str(error)  # noqa: PT017 - and is gone then
        assert "raise memory_budget=" in str(error)  # noqa: PT017
    nothing_is_left(model, tmp_path)
    model.zero_grad()
    for each in (model, plain):
        gpt_loss(each, 0, 0, 0).backward()
    assert same(gradients(model), gradients(plain))


@pytest.mark.parametrize("checkpointing", KINDS)
def test_a_flipped_bit_raises(tmp_path: Path, checkpointing: Any) -> None:
    """A1. Goal: backward ends with the place of the damage, not with a gradient.
    Method: flip a bit of the last place of the file that is not in memory."""
    model: Any = offloaded(make_gpt(gpt_config(checkpointing=checkpointing)), tmp_path)
    loss = gpt_loss(model, 0, 0, 0)
    store = model.__dict__["luwu_offload"].store
    assert is_soon(lambda: store.stats().waiting_bytes == 0)
    saved = next(each for each in store._saved.values() if each.nbytes >= 8192)
    (byte,) = os.pread(store._file._fd, 1, saved.offset + 5000)
    os.pwrite(store._file._fd, bytes([byte ^ 16]), saved.offset + 5000)
    with pytest.raises(StateError, match=rf"checksum .* offset {saved.offset}, expected"):
        loss.backward()


@pytest.mark.feature("offload_activations inside a checkpoint")
def test_inside_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """Goal: on a block that is checkpointed from outside, nothing could be moved: it says where to
    call it instead."""
    model: Any = make_gpt(gpt_config(checkpointing="nonreentrant"))
    offloaded(model.blocks[0], tmp_path)
    with pytest.raises(ConfigError, match=r"this Block runs inside of a checkpoint.*whole model"):
        gpt_loss(model, 0, 0, 0)
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_inside_of_a_reentrant_checkpoint(tmp_path: Path) -> None:
    """Goal: what its repeated forward saves is used at once, and stays."""
    model: Any = make_gpt(gpt_config(checkpointing="reentrant"))
    plain = copy.deepcopy(model)
    offloaded(model.blocks[0], tmp_path)
    for each in (model, plain):
        gpt_loss(each, 0, 0, 0).backward()
    assert same(gradients(model), gradients(plain))
    assert luwu.activation_stats(model.blocks[0]).saved_bytes == 0


def test_arguments_that_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="takes a module, got str"):
        luwu.offload_activations("model")  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="memory_budget: '4' has no unit"):
        luwu.offload_activations(layer, memory_budget="4", directory=tmp_path)
    for wrong in (-1, 1.5, True, None):
        with pytest.raises(ConfigError, match=r"memory_budget=.*give a number of bytes"):
            luwu.offload_activations(layer, memory_budget=wrong, directory=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="name a directory that can be written to"):
        luwu.offload_activations(layer, directory=tmp_path / "gone")
    monkeypatch.setattr(offload, "_file_system", lambda directory: "tmpfs")
    with pytest.raises(ConfigError, match=r"is memory \(tmpfs\).*directory="):
        luwu.offload_activations(layer)
    with pytest.raises(ConfigError, match="on this Linear first"):
        luwu.activation_stats(layer)
    assert luwu.offload_activations(layer, directory=tmp_path) is layer
    with pytest.raises(ConfigError, match="called twice on the same Linear"):
        luwu.offload_activations(layer, directory=tmp_path)


def test_the_kind_of_a_file_system() -> None:
    """Goal: what the kernel says of two it always has."""
    assert offload._file_system(Path("/proc")) == "proc"
    assert offload._file_system(Path("/sys")) == "sysfs"


def test_a_copy_has_a_store_of_its_own(tmp_path: Path) -> None:
    """Goal: deepcopy of a module; neither sees what the other saved."""
    model = offloaded(make_gpt(gpt_config()), tmp_path)
    other: Any = copy.deepcopy(model)
    gpt_loss(other, 0, 0, 0).backward()
    assert luwu.activation_stats(model).saved_bytes == 0
    assert luwu.activation_stats(other).saved_bytes > 0
    assert F.mse_loss(model.head.weight, other.head.weight) == 0
