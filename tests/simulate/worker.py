"""A simulated worker: a NicCore, and the job it runs as a generator that waits for handles."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from luwu.base.errors import StepAborted
from luwu.nic.core import NicCore
from luwu.nic.core import actions as nic
from luwu.protocol.actions import Drop, Send
from luwu.wire.messages import Message
from tests.simulate.job import JOB, POISONER, Job, chunks_of, encoded, initial, kept
from tests.simulate.oracles import Oracles
from tests.simulate.world import Payload, Process, World, drop


class Worker(Process):
    """A NicCore and the job it runs, as a generator that waits for handles."""

    def __init__(
        self, world: World, job: Job, rank: int, parent: str, start: int, oracles: Oracles
    ) -> None:  # fmt: skip
        """`start` counts the starts of this rank; each computes gradients of its own."""
        super().__init__(world, f"worker-{rank}#{start}" if start else f"worker-{rank}")
        self.start = start
        self._job, self._rank, self._parent = job, rank, parent
        self._oracles = oracles
        self.core = NicCore(
            job=JOB, rank=rank, world_size=job.world_size, incarnation=100 + rank + 1000 * start,
            retry=job.retry,
        )  # fmt: skip
        self._handle = 0
        self._ahead: dict[int, int] = {}
        """Pulls of the next step, by unit."""
        self._done: set[int] = set()
        self._filled: dict[int, dict[int, Any]] = {}
        """Handle -> weights by extent, as they came."""
        self.decided: dict[int, nic.StepDecided] = {}
        self._facts: nic.Joined | nic.Aborted | None = None
        self._left = False
        self.aborts_count = 0
        self.refused: str | None = None
        self.refused_older = False
        """Because the state lacks decided steps."""
        self._script: Generator[Any, None, None] | None = self._main()
        self._wanted: Any = None
        world.listen(self.name, self._received, self)
        self.later(self._join)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def finished(self) -> bool:
        return self._script is None

    @property
    def only_leaves(self) -> bool:
        """It is joining, to find that all is done, or leaving: it has nothing more to compute."""
        return self._wanted in ("joined", "left")

    def reconnected(self) -> None:
        """The connection to the parent is lost, and comes back under another name."""
        self._world.silence(self.name)
        self.name += "'"
        self._world.listen(self.name, self._received, self)
        self._do(self.core.reconnected(self._now))

    def cancel(self, text: str) -> None:
        """Ask for the attempt to be given up."""
        self._do(self.core.cancel(self._now, text))

    def let_go(self) -> None:
        """Drop all that its core holds; what is held after that was lost."""
        self.core.uplink.forget()
        self.core.encodings.clear()
        self._do(self.core.out.take())

    def _join(self) -> None:
        description = self._job.description
        join = self.core.join(
            self._world.now_ns, description.to_bytes(), description.hash, self._job.aggregator,
            self._job.layout.extent_chunks,
        )  # fmt: skip
        self._do(join)
        self._advance()

    def _received(self, sender: str, message: Message, payload: Any) -> None:
        self._do(self.core.received(self._world.now_ns, message, payload))
        self._advance()

    def tick(self) -> None:
        self._do(self.core.tick(self._world.now_ns))

    def _do(self, actions: list[nic.Action]) -> None:
        for action in actions:
            match action:
                case Send(_, message, payload):
                    self._world.send(self.name, self._parent, message, payload)
                case Drop(payload):
                    drop(payload)
                case nic.Fill(handle, extent, payload, _):
                    self._filled.setdefault(handle, {})[extent] = payload.read().copy()  # type: ignore[attr-defined]
                    payload.drop()  # type: ignore[attr-defined]
                case nic.Done(handle):
                    self._done.add(handle)
                case nic.Joined():
                    self._facts = action
                case nic.StepDecided(step):
                    self.decided[step] = action
                    self._oracles.step_decided(self, action)
                case nic.Aborted():
                    self._facts = action
                    self.aborts_count += 1
                    if self._script is not None and self._wanted not in ("joined", "left"):
                        self._throw(StepAborted(action.step, action.text))
                case nic.Measure(_, payload):
                    statement = self._job.aggregator.measure(payload.read())  # type: ignore[attr-defined]
                    self._later(lambda a=action, s=statement: self.core.measured(self._now, a, s))
                case nic.Encode(_, payload, agreed):
                    data = encoded(self._job.aggregator, payload.read(), agreed)  # type: ignore[attr-defined]
                    self._later(lambda a=action, d=data: self._encoded(a, d))
                case nic.Left():
                    self._left = True
                case nic.Refused(text, is_older):
                    self.refused, self.refused_older = text, is_older

    @property
    def _now(self) -> int:
        return self._world.now_ns

    def _later(self, do: Any) -> None:
        def then() -> None:
            self._do(do())
            self._advance()

        self.later(then)

    def _encoded(self, action: nic.Encode, data: memoryview) -> list[nic.Action]:
        payload = Payload(np.frombuffer(data, np.uint8), self.account)
        return self.core.encoded(self._now, action, payload, data.nbytes)

    def _throw(self, error: StepAborted) -> None:
        assert self._script is not None
        self._wanted = self._script.throw(error)

    def _advance(self) -> None:
        while self._script is not None and self._is_there(self._wanted):
            try:
                self._wanted = next(self._script)
            except StopIteration:
                self._script = None

    def _is_there(self, wanted: Any) -> bool:
        if wanted is None:
            return True
        if wanted == "joined":
            return self._facts is not None
        if wanted == "left":
            return self._left
        if isinstance(wanted, tuple):  # ("decided", step)
            return wanted[1] in self.decided
        if isinstance(wanted, list):
            return all(handle in self._done for handle in wanted)
        return wanted in self._done

    def _new(self) -> int:
        self._handle += 1
        return self._handle

    def _main(self) -> Generator[Any, None, None]:
        yield "joined"
        while True:
            assert self._facts is not None
            step, loaded = self._facts.step, self._facts.loaded
            try:
                if not loaded and self._rank == 0:
                    yield self._load()
                committed = -1
                while step < self._job.steps:
                    use = yield from self._evaluate(step)
                    yield from self._keep(committed)
                    yield from self._step(step, use)
                    committed = step
                    step += 1
                yield from self._keep(committed)
                if committed >= 0:  # else the last step was decided before we came
                    yield ("decided", committed)
                break
            except StepAborted:
                self._forget_ahead()
                continue
        self._forget_ahead()
        self._do(self.core.leave(self._world.now_ns))
        yield "left"

    def _keep(self, step: int) -> Generator[Any, None, None]:
        """As the next step begins, or the last is waited for: then it is replaced, twice."""
        if not self._job.keeps or step < 0:
            return
        self._do(self.core.attach(self._world.now_ns, step, kept(self._rank, step)))
        if (step + self._rank) % 3 == 0:
            yield ("decided", step)
            for part in (1, 2):
                handle, data = self._new(), f"{self._rank} {step} late {part}".encode()
                self._do(self.core.attach(self._world.now_ns, step, [data], part, handle))
                yield handle
                self._oracles.replaced(self, step, data)

    def _load(self) -> int:
        handle = self._new()
        gradients = [
            nic.Gradient(
                index=chunk.index,
                payload=Payload(initial(self._job.layout, chunk.index), self.account),
                payload_bytes=chunk.sum_bytes,
                dtype="float32",
            )
            for chunk in self._job.layout.chunks
        ]
        self._do(self.core.load(self._world.now_ns, handle, gradients))
        return handle

    def _pull(self, step: int, part: int, unit: int) -> int:
        handle = self._new()
        extents = self._job.layout.unit_extents[unit]
        self._do(self.core.pull(self._world.now_ns, handle, step, part, list(extents)))
        return handle

    def _pulled(self, handle: int) -> dict[int, Any]:
        """The weights of a pull that is done, by chunk."""
        found: dict[int, Any] = {}
        for extent, values in self._filled.pop(handle).items():
            found |= chunks_of(self._job.layout, extent, values)
        return found

    def _pull_ahead(self, step: int, unit: int) -> None:
        """Ask for a unit of the next step; which ones, every rank decides for itself."""
        if self._job.pulls_ahead and self._job.update == "streaming" and (unit + self._rank) % 2:
            self._ahead[unit] = self._pull(step + 1, 0, unit)

    def _first_pull(self, step: int, use: int, unit: int) -> int:
        """For a forward: what was asked for in the step before, or asked for now."""
        ahead = self._ahead.pop(unit, None) if use == 0 else None
        return self._pull(step, use, unit) if ahead is None else ahead

    def _forget_ahead(self) -> None:
        for handle in self._ahead.values():
            self._do(self.core.forget(handle))
            self._filled.pop(handle, None)
        self._ahead.clear()

    def _evaluate(self, step: int) -> Generator[Any, None, int]:
        """The last rank pulls the weights of odd steps once more, before it keeps anything beside
        the step before; returns how often they were used."""
        if not self._job.evaluates or self._rank < self._job.world_size - 1 or step % 2 == 0:
            return 0
        seen: dict[int, Any] = {}
        for unit in range(len(self._job.layout.units)):
            handle = self._first_pull(step, 0, unit)
            yield handle
            seen.update(self._pulled(handle))
        self._oracles.used(self, step, seen)
        return 1

    def _step(self, step: int, use: int) -> Generator[Any, None, None]:
        """Train; the weights were used so often already."""
        units = range(len(self._job.layout.units))
        seen: dict[int, Any] = {}
        is_streaming = self._job.update == "streaming"
        if is_streaming and self._job.begins_early:
            self._do(self.core.begin(self._world.now_ns, step, self._job.hyper))
        is_idle = self._job.is_idle(self._rank, step)
        if is_idle:
            self._forget_ahead()
        for part in range(self._job.backwards):
            if is_idle:
                self._oracles.pushed(self, step)
                if is_streaming and not self._job.begins_early:
                    self._do(self.core.begin(self._world.now_ns, step, self._job.hyper))
                yield [self._push(step, part, unit, {}) for unit in reversed(units)]
                continue
            ahead = self._first_pull(step, use, 0)
            for unit in units:
                handle = ahead
                if unit + 1 < len(units):
                    ahead = self._first_pull(step, use, unit + 1)
                yield handle
                seen.update(self._pulled(handle))
            use += 1
            self._oracles.used(self, step, seen)
            self._oracles.pushed(self, step)
            if is_streaming and not self._job.begins_early:
                self._do(self.core.begin(self._world.now_ns, step, self._job.hyper))
            pushes: list[int] = []
            is_turned = self._job.any_order and self._rank % 2 == 1
            for unit in units if is_turned else reversed(units):
                handle = self._pull(step, use, unit)
                yield handle
                weights = self._pulled(handle)
                for chunk, values in weights.items():
                    np.testing.assert_array_equal(values, seen[chunk])
                self._pull_ahead(step, unit)
                pushes.append(self._push(step, part, unit, weights))
            use += 1
            yield pushes
        parts = self._job.backwards
        skip = step == self._job.skip_step and self._rank == POISONER
        self._do(self.core.commit(self._world.now_ns, step, parts, self._job.hyper, skip=skip))

    def _push(self, step: int, part: int, unit: int, weights: dict[int, Any]) -> int:
        gradients = []
        for extent in self._job.layout.trainable_extents(unit):
            values, absent = None, 0
            if not self._job.is_idle(self._rank, step):
                values, absent = self._job.gradient_of_extent(
                    weights, self._rank, step, extent, part, self.start
                )
            if step == self._job.poison_step and self._rank == POISONER and unit == 1:
                chunks = self._job.layout.extents[extent].chunks  # the first, or one behind others
                chunks_of(self._job.layout, extent, values)[chunks[step % len(chunks)]][3] = np.nan
            gradients.append(
                nic.Gradient(
                    index=extent,
                    payload=None if values is None else Payload(values, self.account),
                    payload_bytes=0 if values is None else values.nbytes,
                    dtype="float32",
                    absent=absent,
                )
            )
        handle = self._new()
        last = part == self._job.backwards - 1
        self._do(
            self.core.push(
                self._world.now_ns, handle, step, part, gradients,
                weight=1.0 if last else 0.0, last=last and self._job.update == "streaming",
            )
        )  # fmt: skip
        return handle
