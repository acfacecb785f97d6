"""Directories that take seconds to create: created once per test run and copied. All workers of a run share them."""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

MIN_FREE_BYTES = 4 * 2**30
VARIABLE = "TEST_IMAGES"
"""The directory of the images. The process that starts the workers sets it, and they inherit it.

Without the prefix of a setting: the doctor reports unknown settings."""


def memory_directory() -> str | None:
    """A directory in memory if there is enough, where copying a database takes a fifth of the time; else None."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or os.statvfs(shm).f_flag & os.ST_NOEXEC:  # as root, the server's programs are copied there
        return None
    available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    free = min(int(available[1]) * 1024 if available else 0, shutil.disk_usage(shm).free)
    return str(shm) if free > MIN_FREE_BYTES else None


@contextmanager
def shared_images() -> Generator[None]:
    """Let `copy_image` keep its images until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-images-", dir=memory_directory()))
    folder.chmod(0o755)
    os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


def copy_image(name: str, target: Path, create: Callable[[Path], None]) -> None:
    """Copy an image to `target`, which is empty or does not exist. The first call of the run creates the image."""
    images = os.environ.get(VARIABLE)
    if images is None:  # outside of a test run
        create(target)
        return
    image, draft = Path(images, name), Path(images, f"{name}.new")
    with Path(images, f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.exists():
            shutil.rmtree(draft, ignore_errors=True)  # of a call that failed
            create(draft)
            draft.rename(image)
    subprocess.run(["cp", "-aT", image, target], check=True)
