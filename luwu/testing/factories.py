"""Make fixtures of one's own:  `luwu_plain = factories.luwu_proc(no_switch=True)`.

The name it is given is the fixture's name. Imports pytest and the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from luwu.testing.settings import setting

if TYPE_CHECKING:
    from luwu.testing.namespaces import ProcService


def luwu_proc(
    *, transport: str | None = None, chunk: str | None = None, memory_budget: str | None = None,
    durability: str | None = None, no_switch: bool | None = None,
    reshard_after_forward: bool | None = None, grace: str | None = None,
    timeout: float | None = None, keep: bool | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Make a session fixture: a service (a switch and a node) for `luwu_run`.

    The name it is assigned to is the fixture's name. The plugin has one with the defaults, called
    `luwu_proc`; its `pids` are the process numbers of switch and node.

    Args:
        transport: As the key `transport` of `luwu config`; so are the next ones, with units in
            their text.
        chunk: Such as `"64KiB"`.
        memory_budget: Of the node, such as `"256MiB"`.
        durability: `"process"` unless given.
        no_switch: Workers talk to the node directly.
        reshard_after_forward: Free a unit's weights between forward and backward.
        grace: How long to wait for a silent process, such as `"60s"`.
        timeout: Seconds that a run or a start may take; goes before `--luwu-timeout`.
        keep: Keep files of tests that pass; goes before `--luwu-keep`.

    Returns:
        The fixture.

    Examples:
        ```python
        from luwu.testing import factories

        luwu_plain = factories.luwu_proc(no_switch=True, chunk="64KiB")


        def rank_of(rank):
            return rank


        def test_without_a_switch(luwu_run, luwu_plain):
            assert luwu_run(rank_of, workers=2, service=luwu_plain) == [0, 1]
            assert set(luwu_plain.pids) == {"node"}
        ```
    """
    keys = {
        name: value
        for name, value in (
            ("transport", transport), ("chunk", chunk), ("memory_budget", memory_budget),
            ("durability", durability), ("no_switch", no_switch),
            ("reshard_after_forward", reshard_after_forward), ("grace", grace),
        )
        if value is not None
    }  # fmt: skip
    return _service(keys, timeout, keep)


def _service(
    keys: Mapping[str, Any], timeout: float | None, keep: bool | None
) -> Callable[..., Any]:
    """The fixture of `luwu_proc`."""

    @pytest.fixture(scope="session")
    def luwu_proc(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Generator[ProcService, None, None]:
        """A switch and a node as real processes, for one job after the other."""
        from luwu.testing.namespaces import ProcService

        service = ProcService(
            tmp_path_factory.mktemp("luwu-service"),
            keys,
            timeout_s=setting(request.config, "timeout", timeout),
            keep=setting(request.config, "keep", keep),
        )
        yield service
        left = [str(each.directory) for each in service.open]
        service.close()
        if left:
            pytest.fail(f"namespaces were not dropped: {', '.join(left)}", pytrace=False)

    return luwu_proc
