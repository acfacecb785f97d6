import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from db.embedded import owner
from db.embedded.owner import Owner
from pabal.db.embedded import start_embedded_server
from pabal.db.embedded.postmaster import find_running_server, is_server_of, stop_process


@pytest.fixture
def workdir() -> Generator[Path]:
    """A directory that an unprivileged server can enter, unlike tmp_path. Servers in it are stopped afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-embedded-"))
    folder.chmod(0o755)
    yield folder
    clear(folder)


@pytest.fixture
def data_dir(workdir: Path) -> Path:
    """A data directory that does not exist yet."""
    return workdir / "home"


@pytest.fixture(scope="session")
def shared_data_dir() -> Generator[Path]:
    """A data directory that is created once, with fsync."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-embedded-"))
    folder.chmod(0o755)
    start_embedded_server(folder / "home").stop()
    yield folder / "home"
    clear(folder)


@pytest.fixture
def existing(shared_data_dir: Path) -> Generator[Path]:
    """The shared data directory. Tests must leave it usable."""
    yield shared_data_dir
    end_servers(shared_data_dir)


@pytest.fixture
def copied(data_dir: Path, shared_data_dir: Path) -> Path:
    """A copy of the shared data directory, for tests that damage it."""
    subprocess.run(["cp", "-a", shared_data_dir, data_dir], check=True)
    return data_dir


@pytest.fixture
def start_owner() -> Generator[Callable[..., Owner]]:
    """Starts owners in other processes and kills them afterwards."""
    owners: list[Owner] = []

    def start(data_dir: Path, **options: Any) -> Owner:
        owners.append(owner.start_owner(data_dir, **options))
        return owners[-1]

    yield start
    for process in owners:
        process.end()


def clear(folder: Path) -> None:
    end_servers(folder)
    shutil.rmtree(folder)


def end_servers(folder: Path) -> None:
    for data in folder.glob("**/postgres-*/"):
        running = find_running_server(data)
        if running is not None:
            stop_process(running.pid, lambda pid=running.pid, data=data: is_server_of(pid, data))
