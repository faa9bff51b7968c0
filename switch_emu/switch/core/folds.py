"""N equal statements folded into one: what all children say of a step, the switch says once.

Children state the same thing (the hash of their hyper-parameters, the number of their backward
passes); rank 0's bytes are the ones that travel on. Children that differ are named. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from luwu.protocol.members import ranks_text


class DisagreementError(Exception):
    """Children state different things of one step; the text names them."""


@dataclass(slots=True)
class Fold:
    """The statements of all children about one step."""

    what: str
    """For people: `hyper-parameters of step 3`."""
    children: Sequence[int]
    statements: dict[int, str] = field(default_factory=dict)
    payload: bytes = b""
    """Of the child that speaks for rank 0, or else of the lowest rank here."""

    skip: bool = False
    """One of them wants the step left out."""

    refusal: str = ""
    """How the children differ, once they are known to."""

    def state(self, ranks: int, statement: str, payload: bytes) -> bool:
        """Note what a child says; True as soon as all agree. Raises DisagreementError."""
        self.statements[ranks] = statement
        if ranks == self.children[0]:
            self.payload = payload
        if len(self.statements) < len(self.children):
            return False
        if len(set(self.statements.values())) > 1:
            groups: dict[str, list[int]] = {}
            for child, said in sorted(self.statements.items()):
                groups.setdefault(said, []).append(child)
            told = "; ".join(
                f"ranks {ranks_text(g)}: {said[:24]}" for said, g in list(groups.items())[:4]
            )
            self.refusal = (
                f"the {self.what} differ between ranks ({told}); every rank must use "
                "the same, and must have frozen the same parameters"
            )
            raise DisagreementError(self.refusal)
        return True


class Folds:
    """The statements of one kind about the steps that are open."""

    def __init__(self, children: Sequence[int]) -> None:
        self._children = children
        self._of: dict[int, Fold] = {}

    def of(self, step: int) -> Fold:
        """What was stated of a step."""
        return self._of.setdefault(step, Fold(f"hyper-parameters of step {step}", self._children))

    def forget(self, step: int | None = None) -> None:
        """Forget all steps, or one."""
        if step is None:
            self._of.clear()
        else:
            self._of.pop(step, None)

    def __iter__(self) -> Iterator[tuple[int, Fold]]:
        return iter(self._of.items())
