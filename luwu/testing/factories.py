"""Make fixtures of one's own:  `luwu_plain = factories.luwu_proc(no_switch=True)`.

The name it is given is the fixture's name. Imports pytest and the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

from luwu.testing.settings import setting

if TYPE_CHECKING:
    from luwu.testing.namespaces import External, ProcService


def luwu_proc(
    *, transport: str | None = None, chunk: str | None = None, memory_budget: str | None = None,
    durability: str | None = None, no_switch: bool | None = None, stripes: int | None = None,
    reshard_after_forward: bool | None = None, grace: str | None = None,
    timeout: float | None = None, keep: bool | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """A session fixture: a service of one's own.

    The arguments are keys of `luwu config`, with units in their texts, such as chunk="64KiB";
    `timeout` and `keep` go before --luwu-timeout and --luwu-keep.
    """
    keys = {
        name: value
        for name, value in (
            ("transport", transport), ("chunk", chunk), ("memory_budget", memory_budget),
            ("durability", durability), ("no_switch", no_switch), ("stripes", stripes),
            ("reshard_after_forward", reshard_after_forward), ("grace", grace),
        )
        if value is not None
    }  # fmt: skip

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


def luwu_noproc(*, connect: str | None = None, timeout: float | None = None) -> Callable[..., Any]:
    """A session fixture: the job of a `luwu up` that runs already."""

    @pytest.fixture(scope="session")
    def luwu_noproc(request: pytest.FixtureRequest) -> External:
        """A job that is served elsewhere; it has answered."""
        where = setting(request.config, "connect", connect)
        if where is None:
            pytest.fail(
                "luwu_noproc needs the job of a running luwu up: give --luwu-connect FILE|URL, or "
                "luwu_connect in the ini file; luwu_proc starts a service of its own",
                pytrace=False,
            )
        from luwu.testing.namespaces import External

        return External(where, timeout_s=setting(request.config, "timeout", timeout))

    return luwu_noproc
