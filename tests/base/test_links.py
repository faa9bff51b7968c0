"""What a user writes about links: one grammar, and errors that say what would work."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.base.config import resolve
from luwu.base.errors import ConfigError
from luwu.base.links import PROFILES, LinkPair, LinkSpec, parse_links, push_window_bytes
from luwu.base.retry import RetryPolicy
from luwu.commands.main import main
from luwu.launch.network import (
    chunk_for_links,
    dilated_compute_ms,
    dilated_disk_rate,
    links_of,
    tree_of,
)

GBIT = 1e9 / 8
IDEAL = LinkSpec()


def config(**texts: str):
    return resolve(flags=texts, environ={}).config


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("10gbit", LinkSpec(rate_bytes_per_s=10 * GBIT)),
        ("2GB/s", LinkSpec(rate_bytes_per_s=2e9)),
        ("100gbe", PROFILES["100gbe"]),
        ("IB-NDR", PROFILES["ib-ndr"]),
        ("none", IDEAL),
        ("loss=0.01", LinkSpec(loss_ratio=0.01)),
        ("virtio,delay=0", LinkSpec(rate_bytes_per_s=10.5 * GBIT)),
        (
            "rate=1gbit, delay=0.2ms,jitter=0.05ms,loss=0.01,duplicate=0.02,reorder=16,queue=4MiB",
            LinkSpec(
                rate_bytes_per_s=GBIT, delay_ns=200_000, jitter_ns=50_000, loss_ratio=0.01,
                duplicate_ratio=0.02, reorder_window=16, queue_bytes=4 << 20,
            ),
        ),
    ],
)  # fmt: skip
def test_one_text_may_be_for_all_links(text: str, spec: LinkSpec) -> None:
    links = parse_links(text)
    assert {found for _, _, found in links.directions()} == {spec}
    assert str(links) == text


def test_the_most_specific_part_counts_as_a_whole() -> None:
    links = parse_links("10gbit,delay=1ms;worker=25gbe;worker.up=1gbit;node.down=none")
    slow = LinkSpec(rate_bytes_per_s=10 * GBIT, delay_ns=1_000_000)
    assert links.switch == LinkPair(up=slow, down=slow)
    assert links.worker == LinkPair(up=LinkSpec(rate_bytes_per_s=GBIT), down=PROFILES["25gbe"])
    assert links.node == LinkPair(up=slow, down=IDEAL)
    assert links.named == ("worker", "node")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("26gbe", r"neither a rate.*nor a profile.*did you mean 25gbe"),
        ("infinband", "neither a rate"),
        ("10", "neither a rate"),
        ("0gbit", "carries nothing; write 1gbit"),
        ("rate=0", "carries nothing; write 1gbit"),
        ("rate=fast", "is not a number with a unit; write 1gbit"),
        ("loss=1", "below 1; write 0.01"),
        ("loss=-0.1", "below 1; write 0.01"),
        ("loss=nan", "below 1; write 0.01"),
        ("duplicate=2", "below 1; write 0.01"),
        ("reorder=1.5", "number of messages from 0 to 4096"),
        ("reorder=5000", "number of messages from 0 to 4096"),
        ("delay=1", "has no unit; write 50us"),
        ("queue=4MiB", "a queue without a rate never fills; give a rate"),
        ("1gbit,queue=0", "drops all that waits; give a size"),
        ("1gbit,lss=0.1", "did you mean loss"),
        ("1gbit,100gbe", "is not an option"),
        ("delay=1ms,delay=2ms", "sets delay twice"),
        ("wroker=25gbe", "did you mean worker"),
        ("dealy=1ms", "did you mean delay"),
        ("worker.upp=25gbe", r"write worker\.up .*did you mean up"),
        ("worker=1gbit;worker=2gbit", "sets worker twice"),
        ("1gbit;", "empty part"),
        ("", "empty part"),
    ],
)
def test_bad_network_links_are_refused_with_what_would_work(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        config(link=text)
    assert "link" in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"link": "loss=1"}, "loss: '1' is not a share of messages.*write 0.01"),
        ({"link": "duplicate=x"}, "duplicate: 'x' is not a share"),
        ({"link": "reorder=-1"}, "reorder: '-1' is not a number of messages"),
        ({"dilation": "0.5"}, "--dilation: '0.5' is not a number from 1"),
        ({"dilation": "inf"}, "--dilation: 'inf' is not a number from 1"),
        ({"disk_rate": "0"}, "--disk-rate: a rate of 0 carries nothing"),
        ({"dilation": "10"}, "nothing is emulated that it could slow down; give a --link"),
        ({"dilation": "10", "link": "loss=0.1"}, "nothing is emulated that it could slow down"),
        ({"link": "switch=1gbit"}, "no switch is above another"),
        ({"link": "node=1gbit", "no_switch": "true"}, "with --no-switch the node has no link"),
        ({"disk_rate": "1GB/s", "durability": "none"}, "name a directory with --state"),
    ],
)
def test_bad_network_keys_are_refused_with_what_would_work(
    texts: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        links_of(config(**texts))


@pytest.mark.parametrize(
    "tokens",
    [["compare", "--arms", "fsdp", "--link", "1gbit"], ["compare", "--link", "26gbe"],
     ["compare", "--link", "loss=1"], ["compare", "--dilation", "10"],
     ["estimate", "--link", "1gbit"],
     ["run", "--join", "x", "--link", "1gbit", "-m", "a"]],
)  # fmt: skip
def test_bad_network_ends_with_code_2_before_anything_starts(
    tokens: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tokens) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "link" in shown.err or "dilation" in shown.err
    assert "luwu: compare" not in shown.err


def test_bad_network_two_links_below_one_switch(tmp_path: Path) -> None:
    """Goal: a switch emulates one link for all its children; two are refused, not one of them
    taken. One worker below a leaf is a worker's link, and the leaf's a switch's."""
    file = tmp_path / "tree.toml"
    file.write_text(
        '[top]\nparent = "node"\nworkers = "0"\n[leaf]\nparent = "top"\nworkers = "1"\n'
    )
    tree = tree_of(config(workers="2", tree=str(file), link="1gbit"))
    assert [tree.roles_below(place) for place in tree] == [("worker", "switch"), ("worker",)]
    for text in ("worker=1gbit", "worker=1gbit;switch=2gbit"):
        with pytest.raises(ConfigError, match=r"\[top\] of .*worker and a switch.*alike"):
            tree_of(config(workers="2", tree=str(file), link=text))


@pytest.mark.parametrize(
    ("texts", "chunk_kib"),
    [({}, 16384), ({"link": "loss=0.1"}, 16384), ({"link": "100gbe"}, 16384),
     ({"link": "1gbit"}, 1024), ({"link": "worker=10gbit;node=1gbit"}, 1024),
     ({"link": "100mbit"}, 128), ({"link": "1mbit"}, 64),
     ({"link": "100gbe", "dilation": "100"}, 16384), ({"hosts": "2"}, 1024)],
)  # fmt: skip
def test_the_chunk_follows_the_slowest_link(texts: dict[str, str], chunk_kib: int) -> None:
    """Goal: a chunk crosses a link in an instant of the cluster's own time, however dilated."""
    assert chunk_for_links(config(**texts), 16384 * 1024) == chunk_kib * 1024


def test_dilation_slows_everything_by_one_factor() -> None:
    """Goal: rates divided, delays, jitter and compute multiplied; ratios and sizes stay."""
    asked = config(
        link="100gbit,delay=2us,jitter=1us,loss=0.1,queue=1MiB", dilation="100",
        compute_ms="1.5", disk_rate="5GB/s",
    )  # fmt: skip
    spec = links_of(asked).node.down
    assert spec == LinkSpec(
        rate_bytes_per_s=GBIT, delay_ns=200_000, jitter_ns=100_000, loss_ratio=0.1,
        queue_bytes=1 << 20,
    )  # fmt: skip
    assert dilated_compute_ms(asked) == 150
    assert dilated_disk_rate(asked) == 5e7


def test_what_is_kept_of_links_can_be_given_again() -> None:
    first = resolve(
        flags={"link": "worker=25gbe;node=100gbe", "disk_rate": "1gbit", "dilation": "30"},
        environ={},
    )  # fmt: skip
    kept = first.document()["keys"]
    texts = {name: kept[name]["value"] for name in ("link", "disk_rate", "dilation")}
    assert resolve(flags=texts, environ={}).config == first.config


def test_retries_are_fast_where_messages_can_be_lost() -> None:
    """Goal: a round trip and what is under way, and no less than 50 ms; without loss, and without
    a link, repetition stays the last resort."""
    assert LinkPair().retry() is None
    lossless = parse_links("1gbit,delay=1ms").worker.retry()
    assert lossless is not None
    assert (lossless.first_ns, lossless.most_ns) == (RetryPolicy().first_ns, RetryPolicy().most_ns)
    quick = parse_links("1gbit,loss=0.1").worker.retry()
    assert quick is not None
    assert quick.first_ns == 50_000_000
    assert quick.ns_per_byte == pytest.approx(16)
    far = parse_links("delay=100ms,jitter=20ms,loss=0.1").worker.retry()
    assert far is not None
    assert far.first_ns == 240_000_000
    queued = parse_links("1gbit,queue=1MiB").worker.retry()
    assert queued is not None
    assert queued.first_ns == 50_000_000


def test_a_window_covers_the_round_trip_and_no_more() -> None:
    pair = parse_links("1gbit,delay=40ms").worker
    chunk = 16 * 1024
    window = push_window_bytes(pair, chunk, 1 << 30)
    round_trip_bytes = GBIT * 0.08
    assert 2 * round_trip_bytes < window < 3 * round_trip_bytes
    assert push_window_bytes(pair, chunk, 65536) == 65536
    assert push_window_bytes(pair, 1 << 24, 1 << 30) >= 4 << 24
    assert push_window_bytes(parse_links("delay=1ms").worker, chunk, 1 << 30) == 1 << 30
    assert push_window_bytes(None, chunk, 1 << 30) == 1 << 30
