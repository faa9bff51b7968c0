"""Emulated links as a user writes them: rate, delay, jitter, loss, by role and direction.

    TEXT       SPEC, or several parts with `;` between them: worker=25gbe;node=100gbe
    part       SPEC | ROLE=SPEC | ROLE.DIRECTION=SPEC; the most specific one counts, as a whole
    ROLE       worker   the link of each worker to its switch (or to the node, without a switch)
               switch   the link of a switch to the switch above it
               node     the link of the node to each of its switches
    DIRECTION  up       towards the node: gradients        down   towards the workers: weights
    SPEC       WORD | OPTION[,OPTION ...] | WORD,OPTION[,OPTION ...]
    WORD       a rate (10gbit, 2GB/s), a profile (100gbe, virtio, ib-ndr; all below), or none
    OPTION     rate=1gbit  delay=0.2ms  jitter=0.05ms  loss=0.01  duplicate=0.01  reorder=16
               queue=4MiB

A link without options is ideal: no limit of rate, no delay, nothing lost. What is ideal in both
directions is not emulated at all.

Each message waits until those before it have left, leaves at the rate, and arrives after the delay
and up to the jitter more. With `reorder` it may be overtaken by so many later ones; else messages
stay in order. With `queue`, a message that finds more bytes waiting is dropped. Rates are payload
and header bytes of our messages, decimal: 100gbe is 12.5e9 bytes per second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from luwu.base.errors import ConfigError, suggestion
from luwu.base.quantities import decimal, parse_bytes, parse_bytes_per_s, parse_ns, real
from luwu.base.retry import RetryPolicy

ROLES: Final = ("worker", "switch", "node")
DIRECTIONS: Final = ("up", "down")
REORDER_WINDOW_MAX: Final = 4096
DILATION_MAX: Final = 1e6

REORDER_STEP_NS: Final = 50_000
"""The least time that a message waits for one that is to overtake it."""

_RETRY_NS_MIN: Final = 50_000_000
"""Below this a busy host, not a lost message, would be what is waited for."""
_RETRY_FACTOR_MAX: Final = 8
"""The pause doubles three times."""
_HOST_NS: Final = 10_000_000
"""The time that the host may add to a round trip; a window must cover it."""
_EXTENTS_UNDER_WAY_MIN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """One direction of an emulated link; frozen, so a run cannot change its network.

    Values are checked where they are read (`parse_links`). Raises ConfigError for a queue that
    makes no sense.
    """

    rate_bytes_per_s: float | None = None
    """SI prefixes: 100 Gbit/s is 12.5e9. None: no limit."""

    delay_ns: int = 0
    """One way, added after the last byte has left."""

    jitter_ns: int = 0
    """Each message takes up to so much more, uniformly."""

    loss_ratio: float = 0.0
    """Share of messages lost after they have taken their time on the wire, in [0, 1)."""

    duplicate_ratio: float = 0.0
    """Share of messages that are sent twice by the network, in [0, 1); the copy takes its time."""

    reorder_window: int = 0
    """The number of later messages that may overtake one; 0: they stay in order."""

    queue_bytes: int | None = None
    """Bytes that may wait to leave; a message beyond is dropped unless none waits. None: any."""

    def __post_init__(self) -> None:
        if self.queue_bytes is not None and self.queue_bytes <= 0:
            raise ConfigError(
                f"link: a queue of {self.queue_bytes!r} bytes drops all that waits; give a size "
                "such as 4MiB, or leave it out for no limit"
            )
        if self.queue_bytes is not None and self.rate_bytes_per_s is None:
            raise ConfigError(
                "link: a queue without a rate never fills; give a rate too, such as "
                "rate=1gbit,queue=4MiB"
            )

    @property
    def is_ideal(self) -> bool:
        """Nothing is emulated."""
        return self == LinkSpec()

    @property
    def can_lose(self) -> bool:
        """True if a message may never arrive."""
        return self.loss_ratio > 0 or self.queue_bytes is not None

    def serialise_ns(self, nbytes: float) -> float:
        """The time that so many bytes take to leave."""
        return 0.0 if self.rate_bytes_per_s is None else nbytes * 1e9 / self.rate_bytes_per_s

    def spread_ns(self, nbytes: float) -> float:
        """The time that a message of this size may wait for those that overtake it."""
        return self.reorder_window * max(self.serialise_ns(nbytes), float(REORDER_STEP_NS))

    @property
    def longest_ns(self) -> float:
        """The most time that a message without a payload takes, once it leaves."""
        return self.serialise_ns(0) + self.spread_ns(0) + self.delay_ns + self.jitter_ns

    def dilated(self, factor: float) -> LinkSpec:
        """The same link in a world where everything takes `factor` times as long."""
        rate = self.rate_bytes_per_s
        return replace(
            self,
            rate_bytes_per_s=None if rate is None else rate / factor,
            delay_ns=round(self.delay_ns * factor),
            jitter_ns=round(self.jitter_ns * factor),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPair:
    """Both directions of a link."""

    up: LinkSpec = LinkSpec()
    down: LinkSpec = LinkSpec()

    def dilated(self, factor: float) -> LinkPair:
        """The same pair in a world where everything takes `factor` times as long."""
        return LinkPair(up=self.up.dilated(factor), down=self.down.dilated(factor))

    @property
    def is_ideal(self) -> bool:
        """Nothing is emulated."""
        return self.up.is_ideal and self.down.is_ideal

    @property
    def can_lose(self) -> bool:
        """True if a message of either direction may never arrive."""
        return self.up.can_lose or self.down.can_lose

    def retry(self) -> RetryPolicy | None:
        """The retry policy of a sender over this link; None: the usual one, nothing is emulated.

        A round trip, and the time that what is under way takes to leave, both ways. Where nothing
        can be lost, repetition stays the last resort that it is without a link.
        """
        if self.is_ideal:
            return None
        first_ns = round(self.up.longest_ns + self.down.longest_ns)
        ns_per_byte = sum(
            spec.serialise_ns(1) * (1 + spec.reorder_window / _EXTENTS_UNDER_WAY_MIN)
            for spec in (self.up, self.down)
        )
        default = RetryPolicy()
        if not self.can_lose:
            first_ns = max(first_ns, default.first_ns)
            most_ns = max(first_ns, default.most_ns)
        else:
            first_ns = max(first_ns, _RETRY_NS_MIN)
            most_ns = _RETRY_FACTOR_MAX * first_ns
        return RetryPolicy(first_ns=first_ns, most_ns=most_ns, ns_per_byte=ns_per_byte)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The links of a run, by role."""

    worker: LinkPair = LinkPair()
    switch: LinkPair = LinkPair()
    node: LinkPair = LinkPair()
    text: str = "none"
    """The text of the user."""

    named: tuple[str, ...] = ()
    """Roles that the text names."""

    def __str__(self) -> str:
        return self.text

    @property
    def is_ideal(self) -> bool:
        """Nothing is emulated."""
        return all(spec.is_ideal for _, _, spec in self.directions())

    @property
    def has_rate_or_delay(self) -> bool:
        """True if any link has a rate or a delay."""
        return any(
            spec.rate_bytes_per_s is not None or spec.delay_ns or spec.jitter_ns
            for _, _, spec in self.directions()
        )

    def dilated(self, factor: float) -> Links:
        """The same links in a world where everything takes `factor` times as long."""
        worker, switch, node = (self.of(role).dilated(factor) for role in ROLES)
        return replace(self, worker=worker, switch=switch, node=node)

    def of(self, role: str) -> LinkPair:
        """The link of a role."""
        pair: LinkPair = getattr(self, role)
        return pair

    def below(self, roles: Sequence[str], where: str) -> LinkPair:
        """The links of those below one switch, which emulates them. Raises ConfigError."""
        pairs = [self.of(role) for role in roles]
        if any(pair != pairs[0] for pair in pairs):
            both = " and ".join(f"a {role}" for role in roles)
            raise ConfigError(
                f"{where} has {both} below it, and links below one switch are alike; give one "
                "link for all, or put a switch above the workers"
            )
        return pairs[0]

    def directions(self) -> Iterator[tuple[str, str, LinkSpec]]:
        """Every direction with its role."""
        for role in ROLES:
            yield role, "up", self.of(role).up
            yield role, "down", self.of(role).down


def _gbit(rate: float, delay_us: float) -> LinkSpec:
    return LinkSpec(rate_bytes_per_s=rate * 1e9 / 8, delay_ns=round(delay_us * 1000))


PROFILES: Final[Mapping[str, LinkSpec]] = {
    "none": LinkSpec(),
    # Rates of virtual NICs were measured on cloud machines: VirtIO with one thread 10.5 Gbit/s;
    # SR-IOV 37.1 Gbit/s with one thread, 349 Gbit/s with as many as help (cited). A single stream
    # has the rate of one thread; sriov-N is min(349, 37.1 N).
    # Delays are assumed: the middle of the usual 30 to 100 us, and of 10 to 20 us.
    "virtio": _gbit(10.5, 50),
    "sriov": _gbit(37.1, 15),
    "sriov-2": _gbit(74.2, 15),
    "sriov-4": _gbit(148.4, 15),
    "sriov-8": _gbit(296.8, 15),
    "sriov-max": _gbit(349, 15),
    # Ethernet: the line rate of IEEE 802.3 (by, bm, bs); what a protocol below ours would take is
    # not deducted. The delay is assumed: one hop and two hosts' adapters, 3 to 10 us with RDMA.
    "1gbe": _gbit(1, 20),
    "10gbe": _gbit(10, 10),
    "25gbe": _gbit(25, 5),
    "40gbe": _gbit(40, 5),
    "100gbe": _gbit(100, 5),
    "200gbe": _gbit(200, 5),
    "400gbe": _gbit(400, 5),
    # InfiniBand, four lanes: the data rates of its roadmap (FDR 54.5 after its 64b/66b code, EDR,
    # HDR, NDR). The delay is assumed: 2.5 to 5 us between hosts with one switch of 150 to 330 ns.
    "ib-fdr": _gbit(54.5, 3),
    "ib-edr": _gbit(100, 3),
    "ib-hdr": _gbit(200, 3),
    "ib-ndr": _gbit(400, 3),
}  # fmt: skip
"""Profiles of links by name: both directions, at one message one way."""

_OPTIONS: Final = ("rate", "delay", "jitter", "loss", "duplicate", "reorder", "queue")
_FIELDS: Final = dict(zip(_OPTIONS, (each.name for each in fields(LinkSpec)), strict=True))


# ---------------------------------------------------------------------- what a user writes


def parse_links(text: str, name: str = "link") -> Links:
    """The links of a text such as `worker=25gbe;node=100gbe`. Raises ConfigError."""
    parts: dict[str, LinkSpec] = {}
    for written in text.split(";"):
        part = written.strip()
        if not part:
            raise ConfigError(f"{name}: {text!r} has an empty part; write 10gbit or worker=25gbe")
        where, spec_text = _place_of(part, name)
        if where in parts:
            raise ConfigError(f"{name}: {text!r} sets {where or 'all links'} twice; set it once")
        parts[where] = _spec(spec_text, f"{name}: {where}" if where else name)
    pairs = {
        role: LinkPair(**{
            way: parts.get(f"{role}.{way}") or parts.get(role) or parts.get("") or LinkSpec()
            for way in DIRECTIONS
        })
        for role in ROLES
    }  # fmt: skip
    named = tuple(role for role in ROLES if any(where.split(".")[0] == role for where in parts))
    return Links(**pairs, text=text.strip(), named=named)


def push_window_bytes(link: LinkPair | None, extent_bytes: int, most_bytes: int) -> int:
    """Pushes that may be under way over a link: at most so much, and no more than keeps it busy.

    That is twice what it carries in a round trip, and no less than a few extents.
    """
    if link is None or link.up.rate_bytes_per_s is None:
        return most_bytes
    delays_ns = (spec.delay_ns + spec.jitter_ns for spec in (link.up, link.down))
    round_trip_ns = sum(delays_ns) + link.up.serialise_ns(extent_bytes) + _HOST_NS
    busy_bytes = int(2 * link.up.rate_bytes_per_s * round_trip_ns / 1e9)
    return min(most_bytes, max(_EXTENTS_UNDER_WAY_MIN * extent_bytes, busy_bytes))


def parse_ratio(text: str, name: str) -> float:
    """A share of messages, at least 0 and below 1. Raises ConfigError."""
    value = real(text)
    if not 0 <= value < 1:
        raise ConfigError(
            f"{name}: {text!r} is not a share of messages, at least 0 and below 1; write 0.01 for "
            "one in a hundred"
        )
    return value


def parse_window(text: str, name: str) -> int:
    """A number of messages. Raises ConfigError."""
    found = decimal(text.strip())
    if found is None or found > REORDER_WINDOW_MAX:
        raise ConfigError(
            f"{name}: {text!r} is not a number of messages from 0 to {REORDER_WINDOW_MAX}; 16 lets "
            "16 later messages overtake one"
        )
    return found


def parse_dilation(text: str, name: str) -> float:
    """A factor of time. Raises ConfigError."""
    value = real(text)
    if not 1 <= value <= DILATION_MAX:
        raise ConfigError(
            f"{name}: {text!r} is not a number from 1 to {DILATION_MAX:.0f}; 100 makes a link of "
            "100 Gbit/s one of 1 Gbit/s, and compute as much slower"
        )
    return value


def parse_rate(text: str, name: str) -> float:
    """Bytes per second, above zero. Raises ConfigError."""
    rate = parse_bytes_per_s(text, name=name)
    if rate == 0:
        raise ConfigError(f"{name}: a rate of {text.strip()} carries nothing; write 1gbit or 2GB/s")
    return rate


def _place_of(part: str, name: str) -> tuple[str, str]:
    """The role or role.direction that a part is for, empty for all, and its specification."""
    where, equals, spec_text = part.partition("=")
    where = where.strip()
    role, dot, way = where.partition(".")
    if not equals or "," in where or where in _OPTIONS:
        return "", part
    if role not in ROLES:
        known = [*ROLES, *_OPTIONS]
        raise ConfigError(
            f"{name}: {where!r} is neither a role ({', '.join(ROLES)}) nor an option "
            f"({', '.join(_OPTIONS)}){suggestion(role, known)}"
        )
    if dot and way not in DIRECTIONS:
        raise ConfigError(
            f"{name}: {where!r} names no direction; write {role}.up (towards the node) or "
            f"{role}.down{suggestion(way, DIRECTIONS)}"
        )
    return where, spec_text.strip()


def _spec(text: str, name: str) -> LinkSpec:
    first, *others = (word.strip() for word in text.split(","))
    spec, options = LinkSpec(), [first, *others]
    if "=" not in first:
        spec, options = _word(first, name), others
    values: dict[str, Any] = {}
    for option in options:
        key, equals, value = (each.strip() for each in option.partition("="))
        if not equals or key not in _OPTIONS:
            raise ConfigError(
                f"{name}: {option!r} is not an option; write one of "
                f"{', '.join(f'{each}=' for each in _OPTIONS)}{suggestion(key, _OPTIONS)}"
            )
        if _FIELDS[key] in values:
            raise ConfigError(f"{name}: {text!r} sets {key} twice; set it once")
        values[_FIELDS[key]] = _value(key, value, f"{name}: {key}")
    return replace(spec, **values)


def _word(word: str, name: str) -> LinkSpec:
    if word.lower() in PROFILES:
        return PROFILES[word.lower()]
    close = suggestion(word.lower(), PROFILES)
    try:
        return LinkSpec(rate_bytes_per_s=parse_rate(word, name))
    except ConfigError as exc:
        if "carries nothing" in str(exc):
            raise
        raise ConfigError(
            f"{name}: {word!r} is neither a rate, such as 10gbit or 2GB/s, nor a profile "
            f"({', '.join(PROFILES)}){close}"
        ) from exc


def _value(key: str, text: str, name: str) -> float | int | None:
    match key:
        case "rate":
            return parse_rate(text, name)
        case "delay" | "jitter":
            return parse_ns(text, name=name)
        case "loss" | "duplicate":
            return parse_ratio(text, name)
        case "reorder":
            return parse_window(text, name)
        case _:
            return parse_bytes(text, name=name)
