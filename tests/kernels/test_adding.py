"""Compiled sums of the switch: numpy's bits, or numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from luwu.aggregate.float32 import sum_in_order
from switch_emu.switch import adding
from switch_emu.switch.adding import make_adder
from tests.helpers import kernel_jobs
from tests.helpers.kernel_jobs import payload, random_values, same_bits

cache = kernel_jobs.cache  # a fixture of this module
needs_compiler = pytest.mark.skipif(
    make_adder().version != "compiled", reason="no C compiler that works here"
)


def random_payloads(
    seed: int, count: int, elems: int, dtypes: tuple[str, ...]
) -> tuple[list[memoryview], list[str]]:
    rng = np.random.default_rng(seed)
    chosen = [str(dtype) for dtype in rng.choice(dtypes, count)]
    values = [random_values(rng, elems, special=True) for _ in chosen]
    shifts = rng.integers(0, 9, count).tolist()
    return [payload(*each) for each in zip(values, chosen, shifts, strict=True)], chosen


@needs_compiler
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "dtypes", [("float32",), ("bfloat16",), ("float32", "bfloat16", "float16")]
)
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of values that are not finite
def test_compiled_sums_have_the_bits_of_numpys(
    threads: int, seed: int, dtypes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3. Goal: which way a switch adds changes no bit, wherever the parts of its threads end.
    Method: values of every size and type, some of them not finite, at addresses that are not
    aligned."""
    monkeypatch.setattr(adding, "_PART_ELEMS_MIN", 128)
    rng = np.random.default_rng(seed)
    elems = 64 * int(rng.integers(1, 200)) + seed % 3
    payloads, chosen = random_payloads(seed, int(rng.integers(1, 10)), elems, dtypes)
    memory = np.zeros(elems + 1, np.float32)
    found = memory[seed % 2 :][:elems]
    expected = np.empty(elems, np.float32)
    make_adder(threads=threads).add(payloads, chosen, found)
    sum_in_order(payloads, chosen, expected)
    same_bits(found, expected, f"seed {seed}")


@needs_compiler
def test_lengths_that_do_not_fit_are_refused_or_added_by_numpy() -> None:
    """Goal: the compiled way reads nothing outside its payloads, and takes any length."""
    adder = make_adder()
    one = np.ones(100, np.float32)
    out = np.empty(100, np.float32)
    adder.add([one.data.cast("B")] * 3, ["float32"] * 3, out)
    np.testing.assert_array_equal(out, 3 * one)
    with pytest.raises(ValueError, match="expected 128"):
        adder.add([one.data.cast("B")], ["float32"], np.empty(128, np.float32))
    with pytest.raises(ValueError, match="does not travel"):
        adder.add([np.ones(64, np.float32).data.cast("B")], ["int32"], np.empty(64, np.float32))


def test_without_a_compiler_numpy_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a machine without `cc` sums as before, and says why."""
    monkeypatch.setenv("PATH", str(tmp_path))
    adder = make_adder(tmp_path / "cache")
    assert (adder.version, adder.add) == ("portable", sum_in_order)
    assert "no C compiler" in adder.reason


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_library_with_other_bits_is_not_used(
    dtype: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the check looks at every type. (That it is made once: `test_kernel_making.py`.)
    Method: a library that forgets the last term where there are several of this type."""

    class Forgetful(adding.Fold):
        def __call__(self, contributions, before, out, squares=None):  # type: ignore[no-untyped-def]
            if len(contributions) > 1 and {each for _, each in contributions} == {dtype}:
                contributions = contributions[:-1]
            super().__call__(contributions, before, out, squares)

    monkeypatch.setattr(adding, "Fold", Forgetful)
    adder = make_adder(cache)
    assert adder.version == "portable"
    assert f"{dtype}+{dtype}" in adder.reason
