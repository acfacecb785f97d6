import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from db.embedded import owner
from db.embedded.owner import Owner
from pabal.db.embedded import start_embedded_server
from pabal.db.embedded.postmaster import find_running_server, is_server_of, stop_process


@pytest.fixture
def place() -> Generator[Path]:
    """A folder an unprivileged server can enter, unlike pytest's own; no server is left in it."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-embedded-"))
    folder.chmod(0o755)
    yield folder
    clear(folder)


@pytest.fixture
def home(place: Path) -> Path:
    """Where no data is yet."""
    return place / "home"


@pytest.fixture(scope="session")
def seed() -> Generator[Path]:
    """Data made once, synced as everybody's is."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-embedded-"))
    folder.chmod(0o755)
    start_embedded_server(folder / "home").stop()
    yield folder / "home"
    clear(folder)


@pytest.fixture
def made(seed: Path) -> Generator[Path]:
    """Where data is already; whoever uses it leaves it fit for the next."""
    yield seed
    end_servers(seed)


@pytest.fixture
def grown(home: Path, seed: Path) -> Path:
    """Where data is already, for those who spoil it."""
    subprocess.run(["cp", "-a", seed, home], check=True)
    return home


@pytest.fixture
def hire() -> Generator[Callable[..., Owner]]:
    """Owners in other processes, all of them gone afterwards."""
    hired: list[Owner] = []

    def one(home: Path, *, unprivileged: bool = False, umask: int = 0o022, pg_bin: Path | None = None) -> Owner:
        hired.append(owner.hire(home, unprivileged=unprivileged, umask=umask, pg_bin=pg_bin))
        return hired[-1]

    yield one
    for each in hired:
        each.end()


def clear(folder: Path) -> None:
    end_servers(folder)
    shutil.rmtree(folder)


def end_servers(folder: Path) -> None:
    for data in folder.glob("**/postgres-*/"):
        left = find_running_server(data)
        if left is not None:
            stop_process(left.pid, lambda pid=left.pid, data=data: is_server_of(pid, data))
