"""What many tests of the performance model need."""

from __future__ import annotations

import pytest

from luwu.predict.hardware.catalogue import Catalogue, load


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    """As it comes; it is not changed by anybody."""
    return load()
