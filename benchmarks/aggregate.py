"""What aggregation costs a processor: encoding, adding and decoding a chunk.

One thread, chunks in turn through more memory than the caches hold.

Metric:   float32 bytes of gradient per second: of a worker that measures (if it must) and encodes,
          of a slot that adds the contributions of all workers, of a node that decodes their sum
Floor:    the float32 sum in rank order that a switch makes (compiled, if there is a compiler)
Peer:     that floor too: it is what float32 costs, which encodes and decodes nothing
Checked:  each decoded sum is within the aggregator's stated bound of the exact one
Left out: the round trip of `shared-exponent`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks import harness
from benchmarks.harness import Row, say
from luwu.aggregate import Aggregator, make_aggregator
from luwu.base.errors import LuwuError
from switch_emu.store.direct_io import aligned_buffer
from switch_emu.switch.adding import make_adder

INTEGERS: Final = "shared-exponent"
WORKERS: Final = 4
CHUNK_ELEMS: Final = 256 * 1024
CHUNKS: Final = 24
SMOKE_CHUNKS: Final = 2
REPEATS: Final = 5
MEANINGS: Final = {
    "combine_of_float32": "bytes per second of adding integers / of adding float32",
    "adder": "what added float32",
}


class Chunks:
    """Gradients of all workers, and room for what is made of them."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self.grads = [_floats(count) for _ in range(WORKERS)]
        for each in self.grads:
            each[:] = rng.standard_normal(each.shape, np.float32)
        self.sums = _floats(count)
        self.count = count
        self.nbytes = self.sums.nbytes

    def exact(self, chunk: int) -> Any:
        """The sum of a chunk in float64."""
        return np.sum([each[chunk].astype(np.float64) for each in self.grads], axis=0)


def main() -> int:
    """Run the program; the exit code."""
    parser = harness.flags("aggregate", __doc__ or "")
    arguments = parser.parse_args()
    chunks = Chunks(SMOKE_CHUNKS if arguments.smoke else CHUNKS)
    adder = make_adder()
    stages: dict[tuple[str, str], Callable[[], float]] = {
        ("float32", "combine"): lambda: harness.timed(lambda: _add(chunks, adder.add))
    }
    integers = Encoded(make_aggregator(INTEGERS, WORKERS), chunks)
    integers.check()
    for stage in integers.stages:
        stages[INTEGERS, stage] = partial(integers.timed, stage)
    repeats = arguments.repeats or (1 if arguments.smoke else REPEATS)
    found = harness.interleave({"|".join(key): do for key, do in stages.items()}, repeats)
    rows = [_row(name, seconds, chunks) for name, seconds in found.items()]
    rates = {(row["case"], row["arm"]): row["bytes_per_s"] for row in rows}
    ratio = rates["combine", INTEGERS] / rates["combine", "float32"]
    claims = {"combine_of_float32": ratio, "adder": adder.version}
    result = harness.document("aggregate", rows, claims, claims_meaning=MEANINGS)
    harness.print_table(
        ("stage", "aggregator", "GB/s of float32", "ms a chunk"),
        [
            (row["case"], row["arm"], f"{row['bytes_per_s'] / 1e9:.2f}",
             f"{row['seconds_median'] / chunks.count * 1e3:.2f}")
            for row in rows
        ],
    )  # fmt: skip
    harness.write(arguments.json, result)
    say(f"integers are added at {ratio:.2f} of the rate of float32 ({adder.version})")
    return 0


class Encoded:
    """An aggregator at work on all chunks."""

    def __init__(self, kind: Aggregator, chunks: Chunks) -> None:
        self._kind, self._chunks = kind, chunks
        nbytes, sum_bytes = kind.encoded_bytes(CHUNK_ELEMS), kind.sum_bytes(CHUNK_ELEMS)
        every = range(chunks.count)
        self._parts = [[aligned_buffer(nbytes) for _ in range(WORKERS)] for _ in every]
        self._together = [aligned_buffer(sum_bytes) for _ in every]
        self._agreed = [b"" for _ in every]
        if kind.asks_first:
            self._agreed = [kind.fold([kind.measure(g[at]) for g in chunks.grads]) for at in every]

    @property
    def stages(self) -> tuple[str, ...]:
        """What is done to a chunk, in order."""
        first = ("measure",) if self._kind.asks_first else ()
        return (*first, "encode", "combine", "decode")

    def timed(self, stage: str) -> float:
        """Seconds of a stage over all chunks, the first two of one worker."""
        return harness.timed(getattr(self, f"_{stage}"))

    def check(self) -> None:
        """Raises LuwuError unless the sums are within their bound."""
        for rank in range(WORKERS):
            self._encode(rank)
        self._combine()
        self._decode()
        for chunk in range(self._chunks.count):
            exact = self._chunks.exact(chunk)
            asked = [self._agreed[chunk]] if self._kind.asks_first else []
            bound = self._kind.error_bound(*asked, exact)  # type: ignore[attr-defined]
            if not (np.abs(self._chunks.sums[chunk] - exact) <= bound).all():
                raise LuwuError(f"{self._kind.name}: chunk {chunk} is off by more than its bound")

    def _measure(self) -> None:
        for values in self._chunks.grads[0]:
            self._kind.measure(values)

    def _encode(self, rank: int = 0) -> None:
        grads = self._chunks.grads[rank]
        for values, agreed, parts in zip(grads, self._agreed, self._parts, strict=True):
            self._kind.encode(values, agreed, parts[rank])

    def _combine(self) -> None:
        for parts, together in zip(self._parts, self._together, strict=True):
            self._kind.combine(parts, together)

    def _decode(self) -> None:
        for together, total in zip(self._together, self._chunks.sums, strict=True):
            self._kind.decode(together, total)


def _add(chunks: Chunks, add: Callable[..., object]) -> None:
    for chunk in range(chunks.count):
        parts = [each[chunk].view(np.uint8).data for each in chunks.grads]
        add(parts, ["float32"] * WORKERS, chunks.sums[chunk])


def _floats(count: int) -> Any:
    return np.frombuffer(aligned_buffer(count * CHUNK_ELEMS * 4), np.float32).reshape(count, -1)


def _row(name: str, seconds: list[float], chunks: Chunks) -> Row:
    spec, stage = name.split("|")
    workers = WORKERS if stage == "combine" else 1
    return harness.row(
        stage, spec, seconds, workers=WORKERS, dtype="float32", nbytes=workers * chunks.nbytes
    )


if __name__ == "__main__":
    raise SystemExit(main())
