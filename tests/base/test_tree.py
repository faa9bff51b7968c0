"""The file that --tree names: what it says, what is refused, and the order of sums it means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError
from luwu.base.tree import (
    groups_text,
    one_switch,
    parse_ranks,
    partial_sums,
    ranges_text,
    read_tree,
    tree_of_hosts,
)
from luwu.join.connection import Connection, Leaf, parse_url, read_connection, write_connection
from luwu.launch.network import tree_of
from luwu.launch.sizes import decide_sizes, node_plan
from luwu.protocol.contribution import Contribution, Group, depth, nested, total_weight
from switch_emu.node.spec import NodeSpec

GOOD = """
[host-b]
parent = "top"
workers = [2, 3]
[top]
parent = "node"
[host-a]
parent = "top"
workers = "0-1"
"""

BAD = {
    "cycle": ('[a]\nparent="b"\nworkers="0-3"\n[b]\nparent="a"', "go round: a -> b -> a"),
    "cycle beside a root": (
        '[t]\nparent="node"\nworkers="0-3"\n[a]\nparent="b"\n[b]\nparent="a"',
        r'go round: a -> b -> a; one needs parent = "node"',
    ),
    "own parent": ('[a]\nparent="a"\nworkers="0-3"', "go round: a -> a"),
    "no such parent": ('[a]\nparent="c"\nworkers="0-3"', r"\[a\]: its parent 'c' is not in it"),
    "two roots": (
        '[a]\nparent="node"\nworkers="0-1"\n[b]\nparent="node"\nworkers="2-3"',
        "a and b all have the node as their parent.*give them a common parent",
    ),
    "rank twice": (
        '[a]\nparent="node"\nworkers="0-3"\n[b]\nparent="a"\nworkers="3"',
        r"rank 3 is below \[a\] and \[b\]; name it once",
    ),
    "rank missing": ('[a]\nparent="node"\nworkers="0,2-3"', "ranks 1 are below no switch"),
    "rank missing at the end": (
        '[a]\nparent="node"\nworkers="0-1"',
        "ranks 2-3 are below no switch.*or start with --workers 2",
    ),
    "rank beyond": ('[a]\nparent="node"\nworkers="0-4"', r"rank 4 is beyond --workers 4"),
    "no children": (
        '[a]\nparent="node"\nworkers="0-3"\n[b]\nparent="a"',
        r"\[b\] has no workers and no switch below it",
    ),
    "empty": ("", "has no switch; write"),
    "no TOML": ("[a", "is not TOML"),
    "no parent": ("[a]\nworkers=[0]", "parent is None"),
    "unknown key": ('[a]\nparent="node"\nranks="0-3"', "unknown key 'ranks'"),
    "bad range": ('[a]\nparent="node"\nworkers="3-0"', "'3-0' is neither a rank"),
    "bad list": ('[a]\nparent="node"\nworkers=["0"]', "workers is"),
    "bad name": ('[A]\nparent="node"\nworkers="0-3"', "is not a name of a switch"),
    "called node": ('[node]\nparent="node"\nworkers="0-3"', "is not a name of a switch"),
    "no table": ("a = 3", "write a table"),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD.keys())
def test_bad_network_a_file_that_is_no_tree(tmp_path: Path, text: str, said: str) -> None:
    """I6. Goal: what is no tree of four workers is refused, with the place and what would work."""
    file = tmp_path / "tree.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_tree(file, workers=4)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("workers", [1, 5])
def test_bad_network_hosts_that_share_unevenly(workers: int) -> None:
    """I6. Goal: each host has as many ranks as the others; what would work is named."""
    with pytest.raises(ConfigError, match="give --workers a multiple of 2, or say"):
        tree_of_hosts(workers, 2)


def test_bad_network_a_tree_without_switches(tmp_path: Path) -> None:
    """I6. Goal: --tree beside --no-switch, and a file that is not there, are refused."""
    with pytest.raises(ConfigError, match="leave one of them out"):
        tree_of(RunConfig(tree=tmp_path / "tree.toml", no_switch=True))
    with pytest.raises(ConfigError, match=r"tree: cannot read .*tree\.toml"):
        tree_of(RunConfig(tree=tmp_path / "tree.toml"))


def test_a_tree_is_read_parents_first(tmp_path: Path) -> None:
    """Goal: the order in the file is free; children, ranks and leaves are as it says."""
    file = tmp_path / "tree.toml"
    file.write_text(GOOD)
    tree = read_tree(file, workers=4)
    assert [place.name for place in tree] == ["top", "host-b", "host-a"]
    assert tree.root.process == "switch-top"
    assert tree.children(tree.root) == (0b0011, 0b1100)
    assert tree.children(tree.named("host-b")) == (0b0100, 0b1000)
    assert [tree.leaf_of(rank).name for rank in range(4)] == ["host-a"] * 2 + ["host-b"] * 2
    assert groups_text(tree) == "0-1|2-3|0-3"
    assert partial_sums(tree.groups) == "0-1|2-3"
    assert partial_sums(tree_of_hosts(4, 4).groups) == partial_sums(one_switch(4).groups) == ""
    with pytest.raises(ConfigError, match="no switch 'x'; it has top, host-b, host-a"):
        tree.named("x")


def test_trees_that_need_no_file() -> None:
    """Goal: one switch is called as ever; the switches of hosts have one above them, and each is
    found by its ranks."""
    assert one_switch(3).root.process == "switch"
    assert one_switch(3).children(one_switch(3).root) == (1, 2, 4)
    assert tree_of_hosts(3, 1) == one_switch(3)
    tree = tree_of_hosts(4, 2)
    assert [place.process for place in tree] == ["switch", "switch-host-0", "switch-host-1"]
    assert tree.children(tree.root) == (0b0011, 0b1100)
    assert tree.leaf_above([3, 2]).name == "host-1"
    with pytest.raises(ConfigError, match="a host of this job has 0-1 or 2-3, not 1-2; give"):
        tree.leaf_above([1, 2])


def test_ranks_as_text() -> None:
    """Goal: what is written is read back."""
    for ranks in ((0,), (0, 1, 2, 3), (0, 2, 3, 9), (5, 7)):
        assert parse_ranks(ranges_text(ranks), "x") == ranks


def said(*ranks: int, weight: float = 1.0) -> Contribution:
    return Contribution(sum(1 << rank for rank in ranks), weight, True, "float32", None)


def shape(terms: tuple[Contribution | Group, ...]) -> str:
    parts = [
        f"({shape(term.terms)})" if isinstance(term, Group) else ranges_text(
            rank for rank in range(8) if term.contributors >> rank & 1
        )
        for term in terms
    ]  # fmt: skip
    return "+".join(parts)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [([(3,), (0,), (2,), (1,)], "(0+1)+(2+3)"), ([(2,), (0, 1), (3,)], "0-1+(2+3)"),
     ([(2, 3), (0, 1)], "0-1+2-3"), ([(0,), (2, 3)], "0+2-3"), ([(3,), (2,)], "2+3"),
     ([(0, 1, 2, 3)], "0-3")],
)  # fmt: skip
def test_contributions_are_grouped_as_the_switches_would(
    ranks: list[tuple[int, ...]], expected: str
) -> None:
    """I3. Goal: whoever adds what found no slot adds it in the order of the tree."""
    groups = tree_of_hosts(4, 2).groups
    assert shape(nested([said(*each) for each in ranks], groups)) == expected
    assert depth(groups) == 1


def test_without_a_tree_the_order_is_that_of_the_ranks() -> None:
    """I3. Goal: one switch changes nothing of what was before."""
    assert shape(nested([said(2), said(0), said(1)], ())) == "0+1+2"
    assert shape(nested([said(2), said(0), said(1)], one_switch(3).groups)) == "0+1+2"
    assert depth(one_switch(3).groups) == 0


def test_weights_are_added_in_the_order_of_the_tree() -> None:
    """I3. Goal: the divisor has the bits that the switches would have given it."""
    contributions = [said(rank, weight=weight) for rank, weight in enumerate((1.0, 1e16, 1.0, 1.0))]
    groups = tree_of_hosts(4, 2).groups
    assert total_weight(contributions, groups) == (1.0 + 1e16) + (1.0 + 1.0)
    assert total_weight(contributions, ()) == ((1.0 + 1e16) + 1.0) + 1.0
    assert (1.0 + 1e16) + (1.0 + 1.0) != ((1.0 + 1e16) + 1.0) + 1.0


LEAVES = (Leaf(ranks="0-1", endpoint="shm:///tmp/a"), Leaf(ranks="2-3", endpoint="tcp://h:4"))
IN_TREE = Connection(
    job=1, world_size=4, node="tcp://n:1", switch="tcp://h:2", chunk_bytes=16384,
    tree="0-1|2-3|0-3", leaves=LEAVES,
)  # fmt: skip


def test_a_worker_finds_its_switch(tmp_path: Path) -> None:
    """Goal: the file tells every rank its switch, the URL of a leaf those of its ranks alone."""
    write_connection(tmp_path / "connect.json", IN_TREE)
    found = read_connection(tmp_path / "connect.json")
    assert found == IN_TREE
    assert [found.endpoint_of(rank) for rank in (1, 2)] == ["shm:///tmp/a", "tcp://h:4"]
    of_leaf = parse_url(IN_TREE.url(LEAVES[1]))
    assert of_leaf.endpoint_of(3) == "tcp://h:4"
    assert of_leaf.tree == IN_TREE.tree
    with pytest.raises(ConfigError, match="rank 0 has no switch here, which is for ranks 2-3"):
        of_leaf.endpoint_of(0)


@pytest.mark.parametrize("leaves", [[3], [{"ranks": "x", "endpoint": "tcp://h:1"}], [{}]])
def test_bad_network_leaves_that_are_none(tmp_path: Path, leaves: list[object]) -> None:
    """I6. Goal: a file that was changed by hand is refused."""
    path = tmp_path / "connect.json"
    write_connection(path, IN_TREE)
    path.write_text(json.dumps({**json.loads(path.read_text()), "leaves": leaves}))
    with pytest.raises(
        ConfigError, match=r"leaves( is 3|: ranks, endpoint missing)|is neither a rank"
    ):
        read_connection(path)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("has_tree", [False, True])
def test_the_plan_before_a_run_is_that_of_its_nodes(
    tmp_path: Path, has_tree: bool, nodes: int
) -> None:
    """I5. Goal: what `luwu run` and `luwu estimate` print is what a node does, in a tree too."""
    file = tmp_path / "tree.toml"
    file.write_text(GOOD)
    config = RunConfig(
        workers=4, tree=file if has_tree else None, optimizer_nodes=nodes, transport="tcp",
        memory_budget=nodes * 2 * 2**20, chunk=2**15,
    )  # fmt: skip
    sizes = decide_sizes(config, None)
    assert sizes.extent_chunks > 1
    spec = NodeSpec(
        job=1, world_size=4, listen="", summary=tmp_path, chunk_bytes=sizes.chunk_bytes,
        extent_chunks=sizes.extent_chunks, memory_budget_bytes=config.memory_budget // nodes,
        groups=tree_of(config).groups if has_tree else (),
    )  # fmt: skip
    assert node_plan(config, sizes) == spec.plan()
