"""What many tests of the performance model need."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.predict.hardware.catalogue import Catalogue, load
from tests.predict.tables import MINE


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    """As it comes; it is not changed by anybody."""
    return load()


@pytest.fixture(scope="session")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """With servers, and prices of all that the questions of `tables.py` buy."""
    file: Path = tmp_path_factory.mktemp("catalogue") / "mine.toml"
    file.write_text(MINE)
    return load(file)
