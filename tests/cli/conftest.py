from collections.abc import Generator
from pathlib import Path

import pytest

from running import fresh_folder


@pytest.fixture
def folder() -> Generator[Path]:
    with fresh_folder() as made:
        yield made
