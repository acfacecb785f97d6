"""Whom the server runs as. PostgreSQL refuses to run as root, so root lends it an account that owns nothing."""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypedDict

from pabal.core.errors import EmbeddedServerError

UNPRIVILEGED_USER = "nobody"
INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "TZ")  # the rest of our environment holds secrets and PG* surprises


class ProcessOptions(TypedDict):
    """How every child process lives, in the words of `subprocess`."""

    env: dict[str, str]
    cwd: str
    umask: int
    start_new_session: bool
    user: int | None
    group: int | None
    extra_groups: list[int] | None


@dataclass(frozen=True, slots=True)
class OsUser:
    """The user a child process runs as; `lent` when that is not the caller."""

    uid: int
    gid: int
    drops_privileges: bool

    @property
    def name(self) -> str:
        return os_user_name(self.uid)

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
            **self._process_options(),
        )

    def spawn(self, command: Sequence[str | Path], output: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Start a server that keeps nothing of ours open: not the terminal, not the lock."""
        return subprocess.Popen(  # noqa: S603  # our own binaries, no shell
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            **self._process_options(),
        )

    def can_enter(self, directory: Path) -> bool:
        """Ask the kernel, as that user: modes, lists and mounts all have their say."""
        return self.run(("/bin/sh", "-c", 'cd -- "$1"', "sh", directory)).returncode == 0

    def _process_options(self) -> ProcessOptions:
        carried = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        return ProcessOptions(
            env=carried | {"LC_ALL": "C"},
            cwd="/",
            umask=0o077,
            start_new_session=True,  # or Ctrl-C in our terminal would reach the server before we do
            user=self.uid if self.drops_privileges else None,
            group=self.gid if self.drops_privileges else None,
            extra_groups=[] if self.drops_privileges else None,
        )


def find_server_user() -> OsUser:
    if os.geteuid() != 0:
        return OsUser(os.geteuid(), os.getegid(), drops_privileges=False)
    try:
        entry = pwd.getpwnam(UNPRIVILEGED_USER)
    except KeyError:
        raise EmbeddedServerError(
            f"PostgreSQL does not run as root and there is no user {UNPRIVILEGED_USER} to lend it: "
            "start as another user, or set PABAL_DATABASE_URL"
        ) from None
    return OsUser(entry.pw_uid, entry.pw_gid, drops_privileges=True)


def os_user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
