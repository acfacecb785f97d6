"""The operating system user of the server. PostgreSQL refuses to run as root, so root runs it as `nobody`."""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypedDict

from pabal.core.errors import EmbeddedServerError

UNPRIVILEGED_USER = "nobody"
INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "TZ")  # the rest may contain secrets and PG* variables


class ProcessOptions(TypedDict):
    """Arguments of `subprocess` for every child process."""

    env: dict[str, str]
    cwd: str
    umask: int
    start_new_session: bool
    user: int | None
    group: int | None
    extra_groups: list[int] | None


@dataclass(frozen=True, slots=True)
class OsUser:
    """The user a child process runs as. `drops_privileges` if it is not the current user."""

    uid: int
    gid: int
    drops_privileges: bool

    @property
    def name(self) -> str:
        return os_user_name(self.uid)

    def run(self, command: Sequence[str | Path], stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a program to completion; stdout and stderr are captured together."""
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
        """Start a server that inherits neither the terminal nor the lock."""
        return subprocess.Popen(  # noqa: S603  # our own binaries, no shell
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            **self._process_options(),
        )

    def can_enter(self, directory: Path) -> bool:
        """Try it as that user, which covers modes, access control lists and mounts."""
        return self.run(("/bin/sh", "-c", 'cd -- "$1"', "sh", directory)).returncode == 0

    def _process_options(self) -> ProcessOptions:
        inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        return ProcessOptions(
            env=inherited | {"LC_ALL": "C"},
            cwd="/",
            umask=0o077,
            start_new_session=True,  # otherwise Ctrl-C in the terminal would stop the server before the hub
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
            f"PostgreSQL does not run as root, and there is no user {UNPRIVILEGED_USER} to run it as: "
            "start as another user, or set PABAL_DATABASE_URL"
        ) from None
    return OsUser(entry.pw_uid, entry.pw_gid, drops_privileges=True)


def os_user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
