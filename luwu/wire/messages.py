"""Every message of the protocol, one frozen dataclass each; `codec.py` turns them into bytes.

A message that wants an answer is repeated by its sender until the answer comes, and its receiver
does nothing twice; announcements that get lost are therefore only late.

    child -> parent                     parent -> child                     repeated until
    Hello    I am, and this is my job   Welcome | Refuse                    either
    Load     initial weights            Received                            received
    Begin    hyper-parameters of step   Received                            received
    Push     a gradient chunk           Received                            received
    Pull     weights for a step         Weights                             weights came
    Commit   this step is complete      Verdict, then Decided               decided
    Cancel   give this attempt up       Abort                               abort
    Leave    I am done                  Received                            received
    anything of an older attempt        Abort    the attempt and step that count
    anything of an unknown member       Rejoin   say Hello again

A child is a worker or a switch, a parent a switch or the optimizer node. A switch folds what its
children say into one message of each kind; `contributors` says for which ranks a message speaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class Role(IntEnum):
    """What a process is in the job."""

    WORKER = 1
    READER = 2
    """Pulls and never pushes: evaluation, generation."""
    SWITCH = 3
    NODE = 4


class Verb(IntEnum):
    """What a `Received` answers."""

    LOAD = 1
    BEGIN = 2
    PUSH = 3
    LEAVE = 4


class PayloadRule(IntEnum):
    """How many payload frames follow the header."""

    NONE = 0
    ONE = 1
    OPTIONAL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What all messages say of their sender."""

    CODE: ClassVar[int]
    PAYLOAD: ClassVar[PayloadRule] = PayloadRule.NONE
    IS_DATA: ClassVar[bool] = False
    """Data headers have the smaller cap."""

    job: int
    """Identity of the run; a message of another job is refused."""
    epoch: int
    """Generation of the membership."""
    step: int
    """The step this belongs to, counted from 0; of weights: the step they are for."""
    attempt: int
    """Count of aborted tries of the job; what an older one computed is stale."""
    role: Role
    rank: int
    """Of a worker: its rank. Of a switch or node: its number."""
    incarnation: int
    """Of the sender: grows with each of its starts."""
    generation: int
    """Of the store: grows with each of its openings; fences a zombie node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMessage(Message):
    """About one chunk."""

    IS_DATA: ClassVar[bool] = True

    chunk: int
    part: int
    """Of a push: which of the rank's pushes of this chunk within the step. Of a pull and its
    weights: which of the rank's uses of them within the step (forward, backward, ...)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(DataMessage):
    """Initial weights of a chunk, float32; from rank 0, before step 0."""

    CODE: ClassVar[int] = 1
    PAYLOAD: ClassVar[PayloadRule] = PayloadRule.ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Push(DataMessage):
    """A rank's gradient of a chunk, or the sum over several ranks; no payload: none has one."""

    CODE: ClassVar[int] = 2
    PAYLOAD: ClassVar[PayloadRule] = PayloadRule.OPTIONAL

    contributors: int
    """Bitmap of ranks whose gradient this holds, or who say that they have none."""
    weight: float
    """Sum of the contributors' weights; 0 in every part but the last."""
    last: bool
    """No further part of this chunk follows in this step."""
    raw: bool
    """Found no slot: must be summed at the node and in no switch."""
    dtype: str
    """Of the payload; float32 if it is a sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull(DataMessage):
    """Ask for the weights of a chunk."""

    CODE: ClassVar[int] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights(DataMessage):
    """The weights of a chunk for a step; tentative until the verdict of the step before it."""

    CODE: ClassVar[int] = 4
    PAYLOAD: ClassVar[PayloadRule] = PayloadRule.ONE

    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(DataMessage):
    """The parent holds it, or has handed it on: the sender may forget the bytes."""

    CODE: ClassVar[int] = 5

    verb: Verb
    contributors: int
    """Of the push it answers; 0 for the other verbs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """Join the job. The payload is the job's description (`description.py`)."""

    CODE: ClassVar[int] = 16
    PAYLOAD: ClassVar[PayloadRule] = PayloadRule.ONE

    protocol: int
    world_size: int
    contributors: int
    """Bitmap of the ranks this member speaks for."""
    description_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(Message):
    """You are a member; `step` is the next to be computed, `attempt` the one that counts."""

    CODE: ClassVar[int] = 17

    loaded: bool
    """The state has weights; otherwise rank 0 must `Load` them."""
    push_window_bytes: int
    """Credit: payload bytes a child may have pushed that are not yet received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Message):
    """You cannot be a member, for good; `text` says why and what to do."""

    CODE: ClassVar[int] = 18

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoin(Message):
    """I do not know you (I was started again): say Hello."""

    CODE: ClassVar[int] = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin(Message):
    """The hyper-parameters of a step whose pages are updated while gradients arrive."""

    CODE: ClassVar[int] = 20
    PAYLOAD: ClassVar[PayloadRule] = PayloadRule.ONE

    contributors: int
    hyper_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Message):
    """All pushes of the step are out: `parts` of every chunk. Payload: its hyper-parameters."""

    CODE: ClassVar[int] = 21
    PAYLOAD: ClassVar[PayloadRule] = PayloadRule.ONE

    contributors: int
    hyper_hash: str
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Message):
    """All sums of the step are complete and finite, so its weights may be used; or it is skipped.

    A skipped step (`applied` false) opens a new attempt, `attempt`: weights already streamed under
    the older one are void, and the weights of the step before it stay.
    """

    CODE: ClassVar[int] = 22

    applied: bool
    grad_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(Message):
    """The step is durable as a whole, at the level the job chose."""

    CODE: ClassVar[int] = 23

    applied: bool
    grad_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Message):
    """Please give up the attempt: what was pushed in this step must not be used."""

    CODE: ClassVar[int] = 24

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Message):
    """`attempt` counts from now; go on with `step`, the first undecided one."""

    CODE: ClassVar[int] = 25

    loaded: bool
    """As in `Welcome`."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Message):
    """The members in `contributors` are done and will say no more."""

    CODE: ClassVar[int] = 26

    contributors: int


MESSAGE_TYPES: tuple[type[Message], ...] = (
    Load, Push, Pull, Weights, Received,
    Hello, Welcome, Refuse, Rejoin, Begin, Commit, Verdict, Decided, Cancel, Abort, Leave,
)  # fmt: skip
