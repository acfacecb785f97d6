from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from pabal.hub import DatabaseUrls
from running import fresh_folder
from terminal import Terminal, terminal_at


@pytest.fixture
def folder() -> Generator[Path]:
    with fresh_folder() as made:
        yield made


@pytest.fixture
async def terminal(folder: Path, roads: DatabaseUrls) -> AsyncGenerator[Terminal]:
    async with terminal_at(folder, roads) as made:
        yield made
