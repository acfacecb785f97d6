"""Create the operating system user of the server."""

import grp
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from pabal.db.embedded.os_user import SERVER_USERS, OsUser, find_os_account, find_server_user, is_service_account

SYSTEM_PATH = os.pathsep.join(("/usr/sbin", "/sbin", "/usr/bin", "/bin"))
HOME = "/nonexistent"
TIMEOUT = 20.0
"""Seconds: a directory service may be slow."""


def ensure_server_user(name: str | None = None) -> OsUser:
    """The user that runs the server. Root creates it if there is none; an account of a person is not used."""
    if os.geteuid() == 0 and name is None:
        free_name = next((user for user in SERVER_USERS if is_usable_name(user)), None)
        if free_name is not None and find_os_account(free_name) is None:
            create_system_user(free_name)
    return find_server_user(name)


def is_usable_name(user: str) -> bool:
    entry = find_os_account(user)
    return entry is None or is_service_account(entry)


def create_system_user(user: str) -> None:
    """Create a user without password, home and shell. A failure is logged: the server then runs as `nobody`."""
    from pabal.core.log import get_logger  # a command on a running server does not need it

    log, error = get_logger(), "there is no useradd or adduser"
    for command in user_commands(user):
        try:
            result = subprocess.run(  # noqa: S603  # a program of the system, no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={"PATH": SYSTEM_PATH, "LC_ALL": "C"},
                text=True,
                errors="replace",
                check=False,
                timeout=TIMEOUT,
            )
        except (OSError, subprocess.TimeoutExpired) as failure:
            error = str(failure)
            continue
        if find_os_account(user) is not None:  # also if another process was faster
            log.info("system user created", user=user)
            return
        error = " ".join(result.stdout.split()) or f"{command[0]} exited with {result.returncode}"
    log.warning("system user not created", user=user, error=error)


def user_commands(user: str) -> Iterator[Sequence[str]]:
    """The commands that create a user: of Linux distributions in general, and of BusyBox."""
    shell = shutil.which("nologin", path=SYSTEM_PATH) or "/bin/false"
    if program := shutil.which("useradd", path=SYSTEM_PATH):
        group = ("--gid", user) if group_exists(user) else ("--user-group",)
        yield (program, "--system", *group, "--no-create-home", "--home-dir", HOME, "--shell", shell, user)
    elif program := shutil.which("adduser", path=SYSTEM_PATH):
        yield (program, "-S", "-D", "-H", "-h", HOME, "-s", shell, user)


def group_exists(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True
