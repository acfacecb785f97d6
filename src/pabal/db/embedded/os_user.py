"""The operating system user of the server. PostgreSQL refuses to run as root, so root runs it as another user.

A process of the server's user can read and change the data, and so make itself a superuser of the database. The server
therefore has a user of its own. `nobody` is used only if there is none: other programs may run as `nobody`, too.
"""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypedDict

from pabal.core.errors import EmbeddedServerError

SERVER_USERS = ("pabal", "pabal-postgres")
"""Users of the server, in order of preference: the first name may be the account of a person."""
SHARED_USER = "nobody"
FIRST_PERSONAL_UID = 1000
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

    @property
    def is_shared(self) -> bool:
        """Whether programs that have nothing to do with the server run as the same user."""
        return self.drops_privileges and self.name == SHARED_USER

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


def find_server_user(name: str | None = None) -> OsUser:
    """The current user. Root chooses `name`, else a user for servers that exists, else `nobody`."""
    if os.geteuid() != 0:
        return OsUser(os.geteuid(), os.getegid(), drops_privileges=False)
    if name is not None:
        return require_os_user(name)
    entries = [entry for user in SERVER_USERS if (entry := find_os_account(user)) and is_service_account(entry)]
    if entries:
        return OsUser(entries[0].pw_uid, entries[0].pw_gid, drops_privileges=True)
    if (entry := find_os_account(SHARED_USER)) is not None:
        return OsUser(entry.pw_uid, entry.pw_gid, drops_privileges=True)
    raise EmbeddedServerError(
        f"PostgreSQL does not run as root, and there is no user {SERVER_USERS[0]} or {SHARED_USER} to run it as: "
        "start as another user, or set PABAL_DATABASE_URL"
    )


def require_os_user(name: str) -> OsUser:
    entry = find_os_account(name)
    if entry is None or entry.pw_uid == 0:
        reason = "does not exist" if entry is None else "is root, which PostgreSQL refuses"
        raise EmbeddedServerError(f"PABAL_PG_USER: the user {name} {reason}")
    return OsUser(entry.pw_uid, entry.pw_gid, drops_privileges=True)


def find_os_account(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def is_service_account(entry: pwd.struct_passwd) -> bool:
    """Whether an account belongs to a service and not to a person, whose programs all could change the data."""
    cannot_sign_in = Path(entry.pw_shell).name in {"nologin", "false"}
    return entry.pw_uid != 0 and (entry.pw_uid < FIRST_PERSONAL_UID or cannot_sign_in)


def os_user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
