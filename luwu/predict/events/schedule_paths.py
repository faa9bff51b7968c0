"""The longest path through a pipeline's schedule: its step without playing it.

    E6  a task ends    its seconds after the stage's task before it and the send that it waits for
                       have both ended; a send begins after its task and its port's send before

Orders are fixed, so this determines the step of one job: the event core gives the same result up
to rounding, with a record of every event, and takes tens of times as long. The same step without
its sends and its exchange is computed here too, which gives what each of them adds.
Source: derived.
"""

from __future__ import annotations

from collections import deque

from luwu.predict.events.schedules import BACKWARD, FORWARD, Pipeline, Task, tasks_of


def longest_path_s(pipeline: Pipeline) -> float:
    """Seconds of a step (E6)."""
    return max(_Paths(pipeline).ends())


class _Paths:
    """Ends of tasks, as far as they are known."""

    def __init__(self, plan: Pipeline) -> None:
        self._plan = plan
        stages = range(plan.stages)
        self._tasks = [
            deque(tasks_of(stage, plan.stages, plan.virtual, plan.micro_batches))
            for stage in stages
        ]
        self._gathered = [_sums([plan.data_overlap * p.gather_s for p in each])
                          for each in plan.parts]  # fmt: skip
        self._now = [0.0] * plan.stages
        self._reduced = [each[-1] for each in self._gathered]
        """When the exchange beside compute is done with what it has."""
        self._sent = [0.0] * plan.stages
        """When the port of a stage is done with what it has."""
        self._arrived: list[dict[Task, float]] = [{} for _ in stages]
        """When the input of a stage's tasks is there, as far as that is known."""
        self._arrived[0] = {
            task: 0.0 for task in self._tasks[0] if task.kind == FORWARD and task.part == 0
        }

    def ends(self) -> list[float]:
        """The ends of all stages."""
        waiting = deque(range(self._plan.stages))
        while waiting:
            stage = waiting.popleft()
            tasks, arrived = self._tasks[stage], self._arrived[stage]
            while tasks and tasks[0] in arrived:
                target = self._do(stage, tasks.popleft())
                if target is not None and target != stage:
                    waiting.append(target)
        return [self._end(stage) for stage in range(self._plan.stages)]

    def _do(self, stage: int, task: Task) -> int | None:
        """A task whose input is there; the stage that its output goes to."""
        plan, (kind, part, micro_batch) = self._plan, task
        stages, seconds = len(self._now), plan.parts[stage][part]
        start = max(self._now[stage], self._arrived[stage][task])
        if kind == FORWARD:
            end = start + seconds.forward_s
            if micro_batch == 0:
                end = max(end, self._gathered[stage][part])
            place = part * stages + stage + 1
        else:
            if micro_batch == plan.micro_batches - 1:
                reduce_s = plan.data_overlap * seconds.reduce_s
                self._reduced[stage] = max(start, self._reduced[stage]) + reduce_s
            end = start + seconds.backward_s
            place = part * stages + stage - 1
        self._now[stage] = end
        if place < 0:
            return None
        if place == stages * len(plan.parts[stage]):
            self._arrived[stage][Task(BACKWARD, part, micro_batch)] = end
            return stage
        there, target = divmod(place, stages)
        arrived = max(end, self._sent[stage]) + plan.send_s
        self._sent[stage] = arrived
        self._now[stage] += plan.open_sends * plan.send_s
        self._arrived[target][Task(kind, there, micro_batch)] = arrived
        return target

    def _end(self, stage: int) -> float:
        plan, parts = self._plan, self._plan.parts[stage]
        rest = (1 - plan.data_overlap) * sum(part.reduce_s + part.gather_s for part in parts)
        optimizer = plan.optimizer_s[stage] if plan.optimizer_s else 0.0
        return max(self._now[stage], self._reduced[stage]) + rest + optimizer


def _sums(seconds: list[float]) -> list[float]:
    """Sums of the first, of the first two, and so on."""
    found, total = [], 0.0
    for each in seconds:
        total += each
        found.append(total)
    return found
