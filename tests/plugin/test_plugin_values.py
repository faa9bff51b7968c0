"""What travels between a test and its workers, and how a function is named."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from luwu.base.errors import ConfigError
from luwu.testing.calls import load_value, name_function, save_value, write_call

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.uint8, torch.bool,
]  # fmt: skip


def there_and_back(folder: Path, value: object) -> Any:
    save_value(folder / "value", value, name="args")
    return load_value(folder / "value")


def random_value(rng: random.Random, depth: int) -> Any:
    """Any plain value."""
    leaves = [
        None, True, False, rng.randint(-(2**80), 2**80), rng.uniform(-1, 1) * 1e-300, math.inf,
        "", "text \x00 \u2028 \ud800", rng.randbytes(rng.randint(0, 9)),
    ]  # fmt: skip
    kind = rng.choice(["leaf", "list", "tuple", "dict"]) if depth else "leaf"
    if kind == "leaf":
        return rng.choice(leaves)
    items = [random_value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    if kind == "dict":
        keys = [rng.choice([None, True, 3, 0.5, "tuple", f"key {n}"]) for n in range(len(items))]
        return dict(zip(keys, items, strict=True))
    return items if kind == "list" else tuple(items)


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same classes all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same([[*left], [*left.values()]], [[*right], [*right.values()]])
    return bool(left == right)


@pytest.mark.parametrize("seed", range(30))
def test_plain_values_come_back(tmp_path: Path, seed: int) -> None:
    """Goal: equal values of the same classes, whatever the nesting."""
    value = random_value(random.Random(seed), 4)
    assert same(there_and_back(tmp_path, value), value)


def test_not_a_number_comes_back(tmp_path: Path) -> None:
    found = there_and_back(tmp_path, [math.nan, -0.0])
    assert math.isnan(found[0])
    assert math.copysign(1, found[1]) == -1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_come_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    """Goal: any strides and shapes; memory that two tensors share comes back twice."""
    whole = torch.randint(0, 100, (4, 6), generator=torch.manual_seed(3)).to(dtype)
    tensors = [whole, whole.t(), whole[1:, ::2], torch.empty(0, 3, dtype=dtype), whole[0, 0]]
    found = there_and_back(tmp_path, tensors)
    for sent, came in zip(tensors, found, strict=True):
        assert came.dtype == sent.dtype
        assert torch.equal(came, sent)


def test_a_parameter_comes_back_as_its_values(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    found = there_and_back(tmp_path, parameter)
    assert type(found) is torch.Tensor
    assert not found.requires_grad


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<i8", ">i2", "u1", "?", "<f2"])
def test_arrays_come_back_bit_for_bit(tmp_path: Path, dtype: str) -> None:
    """Goal: any strides and byte orders; a scalar stays a scalar of its dtype."""
    whole = np.arange(24).reshape(4, 6).astype(dtype)
    arrays = [whole, whole.T, whole[::-1, ::2], whole[:0], whole[1, 1], np.array(3, dtype)]
    for sent, came in zip(arrays, there_and_back(tmp_path, arrays), strict=True):
        assert type(came) is type(sent)
        assert came.dtype == sent.dtype.newbyteorder("=")
        np.testing.assert_array_equal(came, sent)


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Config:
    width: int


class Text(str):
    __slots__ = ()


@pytest.mark.feature("functions that workers run, and their results")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"model": torch.nn.Linear(1, 1)}, r"args\['model'\] is Linear\(.*of torch.nn.modules"),
        ([Point(1, 2)], r"args\[0\] is Point.*of tests.plugin.test_plugin_values.Point"),
        ((1, [Config(3)]), r"args\[1\]\[0\] is Config\(width=3\)"),
        (Text("x"), r"args is 'x', of .*Text"),
        ({1, 2}, r"args is \{1, 2\}, of builtins.set"),
        ({(1, 2): 3}, r"args has the key \(1, 2\), of builtins.tuple; the keys"),
        ([threading.Lock()], r"args\[0\] is <unlocked"),
        ([print], r"args\[0\] is <built-in function print>"),
        (1j, r"args is 1j, of builtins.complex"),
        (np.array([object()]), "args is a numpy array of object"),
        (np.array(["a"]), "args is a numpy array of <U1"),
        (torch.eye(2).to_sparse(), "args is a tensor of layout torch.sparse_coo; make it dense"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_other_values_are_refused(tmp_path: Path, value: object, said: str) -> None:
    """I7. Goal: what cannot travel without code is named with its place."""
    with pytest.raises(ConfigError, match=said):
        save_value(tmp_path / "value", value, name="args")


def test_a_value_in_itself_is_refused(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ConfigError, match="nested more than 50 deep, or in itself"):
        save_value(tmp_path / "value", value, name="args")


def plain(rank: int) -> int:
    return rank


@functools.lru_cache
def cached(rank: int) -> int:
    return rank


@functools.wraps(plain)
def hidden(rank: int) -> int:
    return -rank


def made() -> Any:
    def inner(rank: int) -> int:
        return rank

    return inner


class Methods:
    @staticmethod
    def static(rank: int) -> int:
        return rank

    def bound(self, rank: int) -> int:
        return rank


@pytest.mark.feature("functions that workers run, and their results")
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda rank: rank, "cannot import a lambda; name it with def, move it to the top level"),
        (made(), "made while a function runs; move it to the top level of a module"),
        (functools.partial(plain, 1), "is not a function, but a partial; .* give it what it needs"),
        (cached, "is not a function, but a _lru_cache_wrapper"),
        (Methods().bound, "is not a function, but a method"),
        (hidden, "test_plugin_values.plain is not the function that was passed"),
        (Methods, "is not a function, but a type"),
    ],
)
def test_functions_without_a_name_are_refused(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        name_function(function)


def test_functions_have_a_module_a_file_and_a_name() -> None:
    for function, name in ((plain, "plain"), (Methods.static, "Methods.static")):
        file = str(Path(__file__).resolve())
        assert name_function(function) == {"module": __name__, "file": file, "function": name}


def test_args_are_a_sequence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="args is 'text'; give a tuple"):
        write_call(tmp_path / "call", plain, "text")
