"""`luwu.read_from`: a plain model that computes with a decided step, one unit at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

import luwu
from luwu.base.errors import ConfigError, DeadlineError, LuwuError
from luwu.launch.local_cluster import LocalCluster
from luwu.training.reading.read_units import AwayParameter
from tests.unit.real_training import MIB, in_cluster, seeded
from tests.unit.small_models import Block, Stack, batch
from tests.unit.training_harness import one_thread  # noqa: F401 - for every test here

STEPS = 3


class Tied(nn.Module):
    """The first weight is the last too, in the root; a unit inside a unit; one used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64, bias=False)
        self.outer = Outer()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last = nn.Linear(64, 64, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.outer(self.first(x))
        for index in (0, 1, 0):
            x = self.blocks[index](x)
        y: Tensor = self.last(x)
        return y


class Outer(nn.Module):
    """Its own parameters are needed before and after the unit inside."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(64) + 0.5)
        self.inner = Block()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x * self.scale) * self.scale
        return y


class Pair(nn.Module):
    """Two modules that are one unit, and a frozen unit."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = Block().requires_grad_(False)
        self.one = nn.Linear(64, 64)
        self.middle = nn.Linear(64, 64)
        self.other = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.other(self.middle(self.one(self.frozen(x))))
        return y


def shard_stack(model: Any) -> None:
    luwu.fully_shard_each(model, Block)


def shard_stack_bf16(model: Any) -> None:
    luwu.fully_shard_each(model, Block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def shard_tied(model: Any) -> None:
    luwu.fully_shard_each(model, Block, Outer)


def shard_pair(model: Any) -> None:
    luwu.fully_shard(model.frozen)
    luwu.fully_shard([model.one, model.other])
    luwu.fully_shard(model)


JOBS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], None], int]] = {
    "stack": (Stack, shard_stack, 5),
    "bfloat16": (Stack, shard_stack_bf16, 5),
    "tied and nested": (Tied, shard_tied, 6),
    "several modules": (Pair, shard_pair, 3),
}
"""How to make a model and its units, and how many of these a forward needs to come."""


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


@torch.enable_grad()
def train(model: nn.Module, optimizer: Any, first: int, last: int) -> None:
    model.train()
    for step in range(first, last):
        model(batch(step, 0, 0)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    luwu.session().last_result.wait()


def trained_job(name: str = "stack", steps: int = STEPS) -> tuple[Any, Any]:
    make, shard, _ = JOBS[name]
    model = seeded(make)
    shard(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = luwu.optim.AdamW(trainable, lr=1e-2)
    train(model, optimizer, 0, steps)
    return model, optimizer


def here(model: nn.Module) -> int:
    """Bytes of the parameters that have a storage."""
    mine = {id(p): p for p in model.parameters()}
    return sum(p.nbytes for p in mine.values() if not isinstance(p, AwayParameter))


@pytest.mark.feature("read_from")
@pytest.mark.parametrize("name", JOBS)
def test_a_read_model_gives_the_bits_of_the_job(name: str, tmp_path: Path) -> None:
    """Goal: outputs are, bit for bit, those of the worker's model, and of a plain one with the same
    weights; each forward, read ahead or not; nothing is left in the model between."""

    @torch.no_grad()
    def work(rank: int) -> None:
        model, _ = trained_job(name)
        x = batch(9, 0, 0)
        expected = model.eval()(x)
        plain = JOBS[name][0]()
        plain.load_state_dict(luwu.get_model_state_dict(model))
        if name != "bfloat16":
            assert torch.equal(plain(x), expected)
        read = on_meta(JOBS[name][0])
        with luwu.read_from(read, luwu.session().nic.open_reader) as reading:
            assert reading.version == STEPS
            for _ in range(3):
                found = read(x)
                assert torch.equal(found, expected)
                assert here(read) == 0
            assert reading.use_count == 3 * JOBS[name][2]
        assert here(read) == 0
        assert reading.weight_bytes.now == 0

    in_cluster(tmp_path, work)


def test_dtype_may_be_chosen(tmp_path: Path) -> None:
    """Goal: a job in float32, read in bfloat16, gives what its rounded weights give; inputs are
    cast; half the bytes."""

    @torch.no_grad()
    def work(rank: int) -> None:
        model, _ = trained_job()
        plain = Stack()
        plain.load_state_dict(luwu.get_model_state_dict(model))
        read = on_meta(Stack)
        nic, x = luwu.session().nic, batch(9, 0, 0)
        with luwu.read_from(read, nic.open_reader, dtype=torch.bfloat16) as reading:
            assert torch.equal(read(x), plain.bfloat16()(x.bfloat16()))
            assert next(read.parameters()).dtype == torch.bfloat16
            half_bytes = reading.model_bytes
        with luwu.read_from(on_meta(Stack), nic.open_reader) as reading:
            assert reading.model_bytes == 2 * half_bytes
        with pytest.raises(ConfigError, match="float64, but weights can be had in float32"):
            luwu.read_from(on_meta(Stack), nic.open_reader, dtype=torch.float64)
        halved = on_meta(Stack).bfloat16()
        with pytest.raises(ConfigError, match=r"first.weight is bfloat16, expected float32"):
            luwu.read_from(halved, nic.open_reader)
        luwu.read_from(halved, nic.open_reader, dtype=torch.bfloat16).close()

    in_cluster(tmp_path, work)


@pytest.mark.feature("a parameter that is also referenced elsewhere")
def test_who_holds_a_parameter_reads_no_first_values(tmp_path: Path) -> None:
    """Goal: a variable that held a parameter before read_from is refused where it is used."""

    @torch.no_grad()
    def work(rank: int) -> None:
        trained_job()
        read = Stack()
        held = read.first.weight
        with luwu.read_from(read, luwu.session().nic.open_reader):
            read(batch(9, 0, 0))
            assert read.first.weight is held
            with pytest.raises(LuwuError, match=r"matmul: .* parameter first\.weight"):
                batch(9, 0, 0) @ held

    in_cluster(tmp_path, work)


@pytest.mark.feature("read_from: one unit at a time")
@pytest.mark.parametrize("read_ahead", [False, True])
def test_one_unit_is_here_at_a_time(read_ahead: bool, tmp_path: Path) -> None:
    """Goal: inside a block, the root's parameters and the block's have storage, no others; bytes
    held are those, and one unit more if read ahead; each unit is read once a forward, and, but for
    the first forward, before it is needed."""
    blocks = 6

    def work(rank: int) -> None:
        make = lambda: Stack(blocks=blocks)  # noqa: E731
        model = seeded(make)
        shard_stack(model)
        train(model, luwu.optim.AdamW(model.parameters(), lr=1e-2), 0, 1)
        with torch.no_grad():
            read = on_meta(make)
            check(read, luwu.session().nic.open_reader)

    def check(read: Any, open_reader: Any) -> None:
        sizes = [sum(p.nbytes for p in block.parameters()) for block in read.blocks]
        root = sum(p.nbytes for p in read.parameters()) - sum(sizes)
        seen: list[int] = []
        with luwu.read_from(read, open_reader, read_ahead=read_ahead) as reading:
            for block in read.blocks:
                block.register_forward_pre_hook(lambda *_: seen.append(here(read)))
            for _ in range(4):
                read(batch(9, 0, 0))
            assert seen == [root + sizes[0]] * (4 * blocks)
            passes = reading.use_count / (blocks + 1)
            assert passes == 4
            unit_bytes = (reading.model_bytes - root) // blocks
            most = root + unit_bytes * (2 if read_ahead else 1)
            assert most <= reading.weight_bytes.peak <= most + 4096  # padding
            assert reading.bytes_read - 4 * reading.model_bytes in (
                [0, root] if read_ahead else [0]
            )
            assert reading.early_count <= (3 * (blocks + 1) if read_ahead else 0)

    in_cluster(tmp_path, work)


@pytest.mark.feature("read_from: while training goes on")
def test_a_step_stays_until_refresh(tmp_path: Path) -> None:
    """Goal: outputs stay those of the step that was opened, whatever is trained meanwhile, until
    refresh; training ends with the weights it has without a reader."""

    def plain(rank: int) -> None:
        trained_job(steps=2 * STEPS)

    @torch.no_grad()
    def work(rank: int) -> None:
        model, optimizer = trained_job()
        x, read = batch(9, 0, 0), on_meta(Stack)
        before = model.eval()(x)
        with luwu.read_from(read, luwu.session().nic.open_reader) as reading:
            assert torch.equal(read(x), before)
            train(model, optimizer, STEPS, 2 * STEPS)
            assert (reading.version, torch.equal(read(x), before)) == (STEPS, True)
            assert reading.refresh() == 2 * STEPS
            assert torch.equal(read(x), model.eval()(x))
            assert not torch.equal(read(x), before)

    undisturbed = in_cluster(tmp_path / "plain", plain).digest
    assert in_cluster(tmp_path / "read", work).digest == undisturbed
    assert not list(tmp_path.rglob("pin-*"))


class Buffers(nn.Module):
    """A buffer that must be made, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.register_buffer("offset", torch.full((64,), 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.line(x)) + self.offset
        return y


@pytest.mark.feature("read_from: buffers")
def test_buffers_are_the_callers(tmp_path: Path) -> None:
    """Goal: statistics must be given, other buffers made by the function; both are then used."""

    def work(rank: int) -> None:
        model = seeded(Buffers)
        luwu.fully_shard(model)
        train(model, luwu.optim.AdamW(model.parameters(), lr=1e-2), 0, STEPS)
        with torch.no_grad():
            check(model, luwu.session().nic.open_reader)

    def fill(module: nn.Module) -> None:
        if isinstance(module, Buffers):
            module.offset.fill_(0.5)

    def check(model: Any, open_reader: Any) -> None:
        x = batch(9, 0, 0)
        expected = model.eval()(x)
        saved = {
            name: tensor
            for name, tensor in luwu.get_model_state_dict(model).items()
            if name in dict(model.named_buffers())
        }
        assert len(saved) == 3
        read = on_meta(Buffers)
        with pytest.raises(ConfigError, match=r"norm\.running_mean holds running statistics"):
            luwu.read_from(read, open_reader, init_weights=fill)
        with pytest.raises(ConfigError, match="a Buffers has buffers on the meta device and no"):
            luwu.read_from(read, open_reader, buffers=saved)
        with pytest.raises(ConfigError, match="buffer offset of Buffers was not filled"):
            luwu.read_from(on_meta(Buffers), open_reader, buffers=saved,
                           init_weights=lambda _: None)  # fmt: skip
        with pytest.raises(ConfigError, match="buffers= has other, but the model has no such"):
            luwu.read_from(read, open_reader, buffers={**saved, "other": x})
        with pytest.raises(ConfigError, match=r"running_var of shape \(3,\), expected \(64,\)"):
            wrong = {**saved, "norm.running_var": torch.ones(3)}
            luwu.read_from(read, open_reader, buffers=wrong)
        with luwu.read_from(read, open_reader, buffers=saved, init_weights=fill):
            assert torch.equal(read(x), expected)

    in_cluster(tmp_path, work)


class Written(nn.Module):
    """Changes a weight in its forward, if asked to; or returns one; or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(64, 64)
        self.does = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.does == "write":
            self.line.weight.add_(1)
        if self.does == "fail":
            raise ArithmeticError("it failed")
        return self.line.weight[:8] if self.does == "return" else self.line(x)

    def twice(self, x: Tensor) -> Tensor:
        y: Tensor = self(self.line(x))
        return y


@pytest.mark.feature("read_from: rejected calls")
def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """Goal: each mistake raises where it is made, with the remedy; afterwards all works."""

    def work(rank: int) -> None:
        trained = seeded(Written)
        luwu.fully_shard(trained)
        train(trained, luwu.optim.AdamW(trained.parameters(), lr=1e-2), 0, STEPS)
        open_reader, x = luwu.session().nic.open_reader, batch(9, 0, 0)
        with pytest.raises(ConfigError, match="fully_shard was called on this model"):
            luwu.read_from(trained, open_reader)
        read: Any = on_meta(Written)
        with luwu.read_from(read, open_reader) as reading:
            with pytest.raises(LuwuError, match=r"with gradients on.*no_grad\(\)"):
                read(x)
            with pytest.raises(ConfigError, match="reads from a job already"):
                luwu.read_from(read, open_reader)
            with torch.no_grad():
                check(trained.eval(), read, reading, x)
        with torch.no_grad(), pytest.raises(LuwuError, match=r"weights of parameter line\.weight"):
            read(x)
        with pytest.raises(LuwuError, match="closed"):
            reading.refresh()

    def check(trained: Any, read: Any, reading: Any, x: Tensor) -> None:
        expected = trained(x)
        with pytest.raises(LuwuError, match=r"training mode.*model.eval\(\)"):
            read.train()(x)
        read.eval()
        with pytest.raises(LuwuError, match=r"parameter line\.weight are in the network"):
            read.line(x)
        for use in (read.state_dict, read.line.weight.sum, lambda: read.to("meta")):
            with pytest.raises(LuwuError, match=r"luwu\.get_model_state_dict"):
                use()
        assert "line.weight" in repr(read.line.weight)
        read.does = "write"
        with pytest.raises(LuwuError, match="a weight was changed in place"):
            read(x)
        read.does = "fail"
        with pytest.raises(ArithmeticError):
            read(x)
        assert here(read) == 0
        read.does = "return"
        kept = read(x)
        assert kept.untyped_storage().nbytes() == kept.nbytes  # no view of what is freed
        read.does = ""
        assert torch.equal(read(x), expected)
        assert torch.equal(kept, luwu.get_model_state_dict(trained)["line.weight"][:8])
        with pytest.raises(ConfigError, match="Linear is not a unit of the job; its units are"):
            reading.register_forward_method(read.line, "forward")
        with pytest.raises(ConfigError, match="Written has no method thrice"):
            reading.register_forward_method(read, "thrice")
        reading.register_forward_method(read, "twice")
        before = reading.bytes_read
        found = read.twice(x)
        assert reading.bytes_read - before <= reading.model_bytes
        assert torch.equal(found, trained(expected))
        hook = read.register_forward_pre_hook(lambda *_: reading.refresh() and None)
        with pytest.raises(LuwuError, match="refresh inside the forward of Written"):
            read(x)
        hook.remove()
        assert torch.equal(read(x), expected)

    in_cluster(tmp_path, work)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stack(blocks=3), r"blocks\.3\.norm\.weight is missing.*and 1 more"),
        (lambda: Stack(blocks=5), r"blocks\.4\.norm\.weight is not in the job"),
        (lambda: Stack(width=32), r"first\.weight has shape \(32, 32\), expected \(64, 64\)"),
        (lambda: nn.Linear(64, 64), r"first\.weight is missing"),
    ],
    ids=["fewer", "more", "narrower", "another"],
)
def test_a_model_that_does_not_fit_is_shown_the_differences(
    make: Any, message: str, tmp_path: Path
) -> None:
    """Goal: names and shapes that differ are listed, before anything of the model is changed."""

    def work(rank: int) -> None:
        trained_job(steps=1)
        read = make()
        before = {name: p.clone() for name, p in read.named_parameters()}
        with pytest.raises(ConfigError, match=message):
            luwu.read_from(read, luwu.session().nic.open_reader)
        for name, parameter in read.named_parameters():
            assert torch.equal(parameter, before[name])

    in_cluster(tmp_path, work)


def test_a_job_without_weights_says_so(tmp_path: Path) -> None:
    """Goal: what is waited for is said; the model is as it was."""
    with LocalCluster(
        world_size=1, state=None, memory_budget_bytes=8 * MIB, summary=tmp_path / "s.json",
        grace_s=0.2,
    ) as cluster:  # fmt: skip
        model = Stack()
        with pytest.raises(DeadlineError, match="none before its weights are loaded"):
            luwu.read_from(model, cluster.reader)
        model(batch(0, 0, 0)).sum().backward()


@pytest.mark.feature("read_from: the job is gone")
@torch.no_grad()
def test_a_job_that_ended_is_named(tmp_path: Path) -> None:
    """I6. Goal: when the job has ended, a forward fails within the time that an answer is waited
    for, says so, and then at once; nothing is left here, and `close` returns."""
    read = on_meta(Stack)

    def impatient() -> Any:
        reader = luwu.session().nic.open_reader()
        reader._grace_s = 0.3
        return reader

    def work(rank: int) -> Any:
        with torch.enable_grad():
            trained_job()
        return luwu.read_from(read, impatient, read_ahead=False)

    (reading,) = in_cluster(tmp_path, work, transport="tcp").results
    for _ in range(2):
        with pytest.raises(DeadlineError, match=r"waited 0 s for what was asked.*still running\?"):
            read(batch(0, 0, 0))
    assert (here(read), reading.weight_bytes.now) == (0, 0)
    with pytest.raises(ConfigError, match=r"call luwu\.init"):
        reading.refresh()
    reading.close()
