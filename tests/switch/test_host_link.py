"""A switch records what the network cards of its host carry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luwu.base.events import Recorder
from switch_emu.switch.host_link import LOOK_NS, HostLink

HEAD = "Inter-| Receive | Transmit\n face |bytes |bytes\n"


def test_spans_have_the_bytes_since_the_last_look(tmp_path: Path) -> None:
    """Goal: all interfaces but loopback count; a look too soon is none; a link that is idle, or
    that has lost an interface, has no span."""
    counts, events = tmp_path / "dev", tmp_path / "events.jsonl"

    def write(down: int, up: int) -> None:
        rows = {"lo": (7 * down, 7 * up), "eth0": (down, up), "eth1.7": (1, 2)}
        lines = (
            f"{name:>6}: {got} 0 0 0 0 0 0 0 {sent} 0 0\n" for name, (got, sent) in rows.items()
        )
        counts.write_text(HEAD + "".join(lines))

    carried = [(100, 200), (150, 207), (150, 207), (150, 208), (9, 209), (9, 210)]
    with Recorder(role="switch", path=events, printed=None) as recorder:
        link = HostLink(recorder, counts)
        for number, (down, up) in enumerate(carried, 1):
            write(down, up)
            link.look(number * LOOK_NS)
            write(down + 1, up)
            link.look(number * LOOK_NS + 1)
    spans = [json.loads(line) for line in events.read_text().splitlines()[1:]]
    found = [(each["start_ns"] // LOOK_NS, each["up"], each["down"]) for each in spans]
    assert found == [(1, 7, 50), (3, 1, 0), (5, 1, 0)]


@pytest.mark.parametrize("text", [None, HEAD + "eth0: 1 2\n", HEAD + "eth0: many\n"])
def test_counts_of_another_form_are_left_alone(text: str | None, tmp_path: Path) -> None:
    """Goal: a system without these counts has no spans, and one event says why."""
    counts, events = tmp_path / "dev", tmp_path / "events.jsonl"
    if text is not None:
        counts.write_text(text)
    with Recorder(role="switch", path=events, printed=None) as recorder:
        link = HostLink(recorder, counts)
        for number in (1, 2):
            link.look(number * LOOK_NS)
    names = [json.loads(line)["name"] for line in events.read_text().splitlines()]
    assert names == ["clock", "link.unknown"]
