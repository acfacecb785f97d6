"""Whom the server runs as. PostgreSQL refuses to run as root, so root lends it an account that owns nothing."""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypedDict

from pabal.core.errors import EmbeddedFailed

UNPRIVILEGED = "nobody"
CARRIED = ("PATH", "LD_LIBRARY_PATH", "TZ")  # the rest of our environment holds secrets and PG* surprises


class Life(TypedDict):
    """How every child process lives, in the words of `subprocess`."""

    env: dict[str, str]
    cwd: str
    umask: int
    start_new_session: bool
    user: int | None
    group: int | None
    extra_groups: list[int] | None


@dataclass(frozen=True, slots=True)
class Account:
    """The user a child process runs as; `lent` when that is not the caller."""

    uid: int
    gid: int
    lent: bool

    @property
    def name(self) -> str:
        return name_of(self.uid)

    def run(self, command: Sequence[str | Path], stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a tool to its end and return all it printed, as one text."""
        return subprocess.run(  # noqa: S603  # our own binaries, no shell
            list(map(str, command)),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            **self._life(),
        )

    def spawn(self, command: Sequence[str | Path], output: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Start a server that keeps nothing of ours open: not the terminal, not the lock."""
        return subprocess.Popen(  # noqa: S603  # our own binaries, no shell
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            **self._life(),
        )

    def reaches(self, folder: Path) -> bool:
        """Ask the kernel, as that user: modes, lists and mounts all have their say."""
        return self.run(("/bin/sh", "-c", 'cd -- "$1"', "sh", folder)).returncode == 0

    def _life(self) -> Life:
        carried = {name: os.environ[name] for name in CARRIED if name in os.environ}
        return Life(
            env=carried | {"LC_ALL": "C"},
            cwd="/",
            umask=0o077,
            start_new_session=True,  # or Ctrl-C in our terminal would reach the server before we do
            user=self.uid if self.lent else None,
            group=self.gid if self.lent else None,
            extra_groups=[] if self.lent else None,
        )


def account() -> Account:
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), lent=False)
    try:
        entry = pwd.getpwnam(UNPRIVILEGED)
    except KeyError:
        raise EmbeddedFailed(
            f"PostgreSQL does not run as root and there is no user {UNPRIVILEGED} to lend it: "
            "start as another user, or set PABAL_DATABASE_URL"
        ) from None
    return Account(entry.pw_uid, entry.pw_gid, lent=True)


def name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
