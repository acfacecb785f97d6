from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from pabal.hub import DatabaseUrls
from support.pabal_process import fresh_folder
from support.terminal import Terminal, open_terminal


@pytest.fixture
def folder() -> Generator[Path]:
    with fresh_folder() as made:
        yield made


@pytest.fixture
async def terminal(folder: Path, database_urls: DatabaseUrls) -> AsyncGenerator[Terminal]:
    async with open_terminal(folder, database_urls) as made:
        yield made
