"""Every message of the protocol, one dataclass each; `codec.py` turns them into bytes.

A request is repeated by its sender until the answer arrives, and its receiver acts on it once;
an announcement that is lost is therefore only late.

    child -> parent                     parent -> child                     repeated until
    Hello    joins; names the job       Welcome | Refuse                    either
    Load     initial weights            Received                            received
    Begin    hyper-parameters of step   Received                            received
    Push     an extent's gradient       Received                            received
    Propose  what encoding needs        Agreed                              agreed
    Pull     weights for a step         Weights, or Received: the same      either came
    Commit   this step is complete      Verdict, then Decided               decided
    Keep     an attachment to a step    Received                            received
    Cancel   ends this attempt          Abort                               abort
    Leave    the member is done         Received                            received
    Present  ranks it hears from        Received; maybe Abort               received
    Open     holds a decided version    Opened | Gone                       opened
    Read     a field of one page        Content | Gone                      content came
    Shut     releases the version       Gone                                gone
    anything of an older attempt        Abort    the attempt and step that count
    anything of an unknown member       Rejoin   send Hello again

A child is a worker or a switch, a parent a switch or the optimizer node. A switch merges what its
children send into one message of each kind; `contributors` holds the ranks that it represents.

Propose is for aggregators that need it (`luwu.aggregate`), before an extent is encoded and pushed.

Open, Read and Shut are those of a reader, which is no member and belongs to no attempt: a switch
forwards them unchanged, and the answers to the connection that asked.

Where there are several optimizer nodes, their switch leads them, and these pass too:

    switch -> node                      node -> switch                      repeated until
    Hello    as above                   Standing                            standing
    Adopt    an epoch and an attempt    Welcome                             welcome
    Copy     a page, for another node   Page                                page came
    Page     from the node that has it  Received                            received

    node -> switch                      switch -> node                      repeated until
    Measured its sums are complete      Verdict                             verdict
    Prepared a version is durable here  Resolved                            resolved

The switch sends these nodes the verdict, and decides which attempt counts; they send it Decided.

"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, TypeVar, dataclass_transform

KindT = TypeVar("KindT")


class Role(IntEnum):
    """The role of a process in the job."""

    WORKER = 1
    READER = 2
    """Pulls and never pushes: evaluation, generation."""
    SWITCH = 3
    NODE = 4


class Verb(IntEnum):
    """The request that a `Received` answers."""

    LOAD = 1
    BEGIN = 2
    PUSH = 3
    LEAVE = 4
    KEEP = 5
    PRESENT = 6
    HELLO = 7
    """Not all ranks have joined; `contributors` are those that have, as far as the parent knows."""
    PAGE = 8
    PULL = 9
    """The weights are those of the step before, which the asker has."""


class PayloadRule(IntEnum):
    """The number of payload frames after the header."""

    NONE = 0
    ONE = 1
    OPTIONAL = 2


@dataclass_transform(frozen_default=True, kw_only_default=True)
def stamped(kind: type[KindT]) -> type[KindT]:
    """Make a class a dataclass whose objects do not change, though only type checkers see to it.

    A frozen dataclass calls a function to set each field, which took longer than all checks of a
    message that arrived. The codec alone gives fields by their place.
    """
    made: type[Any] = dataclass(slots=True, unsafe_hash=True)(kind)
    return made


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(
    code: int, payload: PayloadRule = PayloadRule.NONE
) -> Callable[[type[KindT]], type[KindT]]:
    """Make a class a message: it knows its code on the wire; see `stamped`."""

    def make(kind: type[KindT]) -> type[KindT]:
        made: type[Any] = stamped(kind)
        made.CODE, made.PAYLOAD = code, payload
        return made

    return make


@stamped
class Message:
    """The fields of every message: the sender and its position."""

    CODE: ClassVar[int]
    PAYLOAD: ClassVar[PayloadRule] = PayloadRule.NONE
    IS_DATA: ClassVar[bool] = False
    """Data headers have the smaller cap."""

    job: int
    """Identity of the run; a message of another job is rejected."""
    epoch: int
    """Generation of the membership."""
    step: int
    """The step this belongs to, counted from 0; of weights: the step they are for."""
    attempt: int
    """Count of aborted tries of the job; what an older one computed is stale."""
    role: Role
    rank: int
    """The rank of a worker; the number of a switch or node."""
    incarnation: int
    """Number of the sender's starts."""
    generation: int
    """Number of the store's openings; fences a zombie node."""


@stamped
class DataMessage(Message):
    """About one extent, or about what `index` says."""

    IS_DATA: ClassVar[bool] = True

    index: int
    """Index of an extent; of a chunk in Load, Read, Content, Copy and Page; of a piece in Keep."""
    part: int
    """In a push: the number of the rank's push of this extent within the step. In a pull and its
    weights: which of the rank's uses of them within the step (forward, backward, ...)."""


@message(1, payload=PayloadRule.ONE)
class Load(DataMessage):
    """Initial weights of a chunk, float32; from rank 0, before step 0.

    Behind them may be the optimizer's state fields, float32, and an int64 for each segment of
    the chunk: its updates so far.
    """


@message(2, payload=PayloadRule.OPTIONAL)
class Push(DataMessage):
    """A rank's gradient of an extent, or the sum over several ranks; no payload: none has one."""

    contributors: int
    """Bitmap of ranks whose gradient this holds, or who say that they have none."""
    absent: int
    """Bitmap of the extent's segments (`Layout.extent_segments`) for which none of these ranks has
    a gradient: the payload holds zeros there, which do not count. 0 without a payload."""
    weight: float
    """Sum of the contributors' weights; 0 in every part but the last."""
    last: bool
    """No further part of this extent follows in this step."""
    raw: bool
    """Found no slot: must be summed at the node and in no switch."""
    dtype: str
    """The payload's dtype; float32 if it is a sum of several. Or ENCODED: as the job's aggregator
    makes it."""


@message(3)
class Pull(DataMessage):
    """Ask for the weights of neighbouring extents, which come one by one."""

    count: int = 1
    """How many, from the named one on."""
    has: bool = False
    """The asker has those of the step before: of what is the same no bytes need to come."""


@message(4, payload=PayloadRule.ONE)
class Weights(DataMessage):
    """The weights of an extent for a step; tentative until the verdict of the step before it."""

    dtype: str
    in_place: int
    """They lie at one of so many places of their extent's own: who shares that memory may use them
    there until it commits the step, and look for others there (`PlacesMap`). 0: at none."""
    checksum: int = 0
    """Checksum of the payload, as its node made it (`altered.py`); 0: none."""


@message(5)
class Received(DataMessage):
    """The parent holds it, or has handed it on: the sender may forget the bytes."""

    verb: Verb
    contributors: int
    """The ranks of the push it answers, of PRESENT and of HELLO; 0 for the other verbs."""


@message(6)
class Read(DataMessage):
    """Ask for a field of a page in the version that the reader holds, which is `step`."""

    reader: int
    field: str
    """A field of the page's record: `weight`, `m`, ..."""
    dtype: str
    """The dtype that weights are rounded to; other fields are sent unchanged."""


@message(7, payload=PayloadRule.ONE)
class Content(DataMessage):
    """The field that was asked for."""

    reader: int
    field: str
    dtype: str


@message(8, payload=PayloadRule.ONE)
class Keep(DataMessage):
    """A piece of a worker's attachment to the version that `step` makes.

    Where the hyper-parameters of a step say so, it is decided only with those of all ranks. Part 0
    has the pieces; a later part comes once the step is decided, in place of what was attached late.
    """

    contributors: int
    """Bitmap of the one rank."""
    pieces: int


@message(9, payload=PayloadRule.ONE)
class Propose(DataMessage):
    """Facts of an extent that all need before any encodes it; empty: these have no gradient."""

    IS_DATA: ClassVar[bool] = False  # small, and folded on the way: its payload is plain bytes

    contributors: int


@message(10, payload=PayloadRule.ONE)
class Agreed(DataMessage):
    """The proposals of all ranks for an extent, combined: it may be encoded. Empty: no gradient."""

    IS_DATA: ClassVar[bool] = False


@message(16, payload=PayloadRule.ONE)
class Hello(Message):
    """Join the job. The payload is the job's description (`description.py`).

    `step`, `attempt` and `generation` are the last that the member knows; 0 if it was just started.
    """

    protocol: int
    world_size: int
    contributors: int
    """Bitmap of the ranks this member speaks for."""
    present: int
    """Bitmap of the ranks among them that the switch receives messages from."""
    roll: int
    """Counts how often that changed, so that what arrives late does not undo what was sent since;
    see `Present`."""
    description_hash: str
    extent_chunks: int = 1
    """Chunks that travel together at most, by which extents are numbered."""


@message(17)
class Welcome(Message):
    """You are a member; `step` is the next to be computed, `attempt` the one that counts. A member
    refuses a `step` before the first undecided one that it knows."""

    contributors: int
    """Bitmap of the ranks that count in this attempt."""
    loaded: bool
    """The state has weights; otherwise rank 0 must `Load` them."""
    push_window_bytes: int
    """Credit: payload bytes a child may have pushed that are not yet received."""
    began_with_skip: bool = False
    """The attempt began as `skipped_step` was skipped: only weights that streamed ahead are void.
    A member of the attempt before it takes this for the verdict, which may have been lost."""
    skipped_step: int = 0
    norms: tuple[float, ...] = (0.0,)
    """Those of the skipped step. Both are 0 where no step was skipped."""

    def skip(self, attempt: int, generation: int) -> Verdict | None:
        """The verdict that a member missed which is at an attempt of a generation: how the
        attempt of this Welcome followed upon it. None: it is of another, or it was an abort."""
        is_next = (attempt + 1, generation) == (self.attempt, self.generation)
        if not (is_next and self.began_with_skip):
            return None
        stamp = {each.name: getattr(self, each.name) for each in fields(Message)}
        stamp["step"] = self.skipped_step
        return Verdict(**stamp, applied=False, norms=self.norms)


@message(18)
class Refuse(Message):
    """The sender cannot be a member, for good; `text` gives the reason and what to do."""

    text: str
    is_older: bool = False
    """The state lacks steps that were announced as decided (`luwu/protocol/children.py`)."""
    is_left_out: bool = False
    """The job goes on without this optimizer node, or under a later start of this child."""


@message(19)
class Rejoin(Message):
    """The parent does not know this member (it restarted): send Hello."""


@message(20, payload=PayloadRule.ONE)
class Begin(Message):
    """The hyper-parameters of a step whose pages are updated while gradients arrive."""

    contributors: int


@message(21, payload=PayloadRule.ONE)
class Commit(Message):
    """All pushes of the step are out: `parts` of every extent. Payload: its hyper-parameters."""

    contributors: int
    parts: int
    skip: bool
    """A rank wants the step left out: it is skipped on all, as if a sum was not finite."""
    held: int = 0
    """At a node that is being filled: how many of its extents count in this step, in the order of
    its pages. 0: all."""


@message(22)
class Verdict(Message):
    """All sums of the step are complete and finite, so its weights may be used; or it is skipped.

    A skipped step (`applied` false) opens a new attempt, `attempt`: weights already streamed under
    the older one are void, and the weights of the step before it stay.
    """

    applied: bool
    norms: tuple[float, ...]
    """Norm of the mean gradient, then what each clip of the step found (`norms.py`)."""


@message(23)
class Decided(Message):
    """The step is durable as a whole, at the level the job chose."""

    applied: bool
    norms: tuple[float, ...]
    """As in `Verdict`."""


@message(24)
class Cancel(Message):
    """Please give up the attempt: what was pushed in this step must not be used."""

    lost: int
    """Bitmap of ranks that were started again: what they have not sent yet will never come."""
    text: str


@message(25)
class Abort(Message):
    """`attempt` counts from now; go on with `step`, the first undecided one."""

    contributors: int
    """As in `Welcome`. A member that is not among them waits to be welcomed again."""
    loaded: bool
    """As in `Welcome`."""
    text: str


@message(26)
class Leave(Message):
    """The members in `contributors` are done and send nothing more."""

    contributors: int


@message(34)
class Present(Message):
    """The ranks that a switch receives from; for a switch below it, those of its last Present."""

    contributors: int
    roll: int


@message(27)
class Open(Message):
    """Hold the newest decided version for this reader."""

    reader: int
    """A number that no other reader has, by chance."""


@message(28, payload=PayloadRule.ONE)
class Opened(Message):
    """The version is `step`. The payload is what else is known of it (`reading.py`)."""

    reader: int


@message(29)
class Shut(Message):
    """The reader needs its version no more."""

    reader: int


@message(30)
class Gone(Message):
    """No version is held for this reader, or no longer; `text` gives the reason and what to do."""

    reader: int
    text: str


@message(31, payload=PayloadRule.OPTIONAL)
class Measured(Message):
    """All sums of a step that this node owns are complete. The payload holds their exact squares
    by stripe (`norms.py`); without one, a sum is not finite.
    """


@message(32, payload=PayloadRule.OPTIONAL)
class Prepared(Message):
    """This node could be decided at a version, after a crash too.

    Where pages have several owners, the payload holds a digest of each stripe of this node.
    """

    version: int


@message(33)
class Resolved(Message):
    """All nodes that count are prepared: a version is decided."""

    version: int


@message(35, payload=PayloadRule.OPTIONAL)
class Standing(Message):
    """The position of one of several optimizer nodes: `step` is its first undecided one, `epoch`
    and `attempt` are as it recorded them. The payload is that of Prepared, if it is prepared."""

    members: int
    """Bitmap of the nodes of that epoch; 0: none is recorded yet, and all are."""
    loaded: bool
    """The state has weights."""
    decided_attempt: int
    """The attempt under which the decided version was made."""
    prepared_attempt: int
    """That of the next version, which can be decided, after a crash too; 0: none is prepared."""


@message(36)
class Adopt(Message):
    """`epoch` and `attempt` count from now: record them, and go on with `step`, once decided at the
    version that it begins with."""

    members: int
    """Bitmap of the nodes that count."""
    contributors: int
    """As in `Welcome`."""
    loaded: bool
    """As in `Welcome`."""
    decided_attempt: int
    """The attempt under which the version was made that it begins with."""
    text: str
    """Why the attempt before it is given up."""
    filling: int = 0
    """The node does not count: it is being filled while the others go on. Number of that filling;
    another than before begins with an empty store. 0: the node counts."""


@message(37)
class Copy(DataMessage):
    """Ask an owner of a chunk for its page, as the version `step` has it."""


@message(38, payload=PayloadRule.ONE)
class Page(DataMessage):
    """A page, from its owner through the switch to the node that is being filled: weights, then
    optimizer state and counts of updates, as in Load."""


MESSAGE_TYPES: tuple[type[Message], ...] = (
    Load, Push, Pull, Weights, Received, Read, Content, Keep,
    Propose, Agreed,
    Hello, Welcome, Refuse, Rejoin, Begin, Commit, Verdict, Decided, Cancel, Abort, Leave,
    Present, Open, Opened, Shut, Gone, Measured, Prepared, Resolved, Standing, Adopt,
    Copy, Page,
)  # fmt: skip
ReaderRequest = Open | Read | Shut
ReaderAnswer = Opened | Content | Gone
