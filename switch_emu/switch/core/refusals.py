"""Optimizer nodes that cannot take part: what each is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from luwu.protocol.actions import End, Send
from luwu.protocol.epoch import nodes_text
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from switch_emu.switch.core.parents import Parents
from switch_emu.switch.core.standings import Position


class Refusals:
    """See the module."""

    def __init__(self, outbox: Outbox, parents: Parents) -> None:
        self._outbox, self._parents = outbox, parents

    def refuse(self, number: int, text: str, **fields: bool) -> None:
        """A node can be none of this job."""
        refusal = self._outbox.stamped(wire.Refuse, text=text[:1000], **fields)
        self._outbox.actions.append(Send((self._parents.names[number],), refusal))

    def leave_out(self, number: int, now: Position) -> None:
        """E4: the job goes on without a node."""
        self.refuse(
            number,
            f"the job goes on without it since epoch {now.epoch} (its directory does not have step "
            f"{now.step} and later): start it again to have it filled by the others, or, when the "
            "job has ended, fill the directory with luwu refill",
            is_left_out=True,
        )

    def refuse_all(self, versions: Mapping[int, int]) -> None:
        """These nodes are at versions that are no state together: the job ends."""
        where = ", ".join(
            f"node {n} at {'no version' if v < 0 else f'version {v}'}" for n, v in versions.items()
        )
        text = (
            f"the optimizer nodes are not parts of one state ({where}); restore all directories of "
            "the state from the same checkpoint"
        )
        for number in versions:
            self.refuse(number, text)
        self._outbox.actions.append(End(text, code="E500"))

    def end_as_they_differ(self, text: str) -> None:
        """E7: owners of a page differ, and again as the step is made again: the job ends."""
        text = (
            f"{text}, which received the same sums, and again when the step was made again; it is "
            "not decided. Check the memory and the disks of these hosts (luwu verify --full), then "
            "continue with --resume"
        )
        self._outbox.actions.append(End(text, code="E509"))

    def end_as_given_up(self, number: int, members: int) -> None:
        """E3: a node knows that an operator went on without those that count: the job ends."""
        names = nodes_text(members)
        text = (
            f"optimizer node {number} is part of a state that an operator went on with without "
            f"{names} (luwu refill --without): the directory of {names} is an older one; move it "
            "away, and start the job again with --resume"
        )
        self._outbox.actions.append(End(text, code="E500"))

    def end_without_pages(self, held: int) -> None:
        """E6: only these nodes still hold something of the state, and lack pages: the job ends."""
        lost = [
            f"stripe {stripe} (of nodes {', '.join(map(str, owners))})"
            for stripe, owners in self._parents.without_owner(held)
        ]
        text = (
            f"all copies of some pages are lost: {', '.join(lost)}; restore the state from a "
            "snapshot or an export, and start the job again with --resume"
        )
        self._outbox.actions.append(End(text, code="E511"))
