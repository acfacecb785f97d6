"""Give the data of a server that ran as `nobody` to the user that runs it now."""

import os
import stat
from pathlib import Path

from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded.os_user import SHARED_USER, OsUser, find_os_account, os_user_name


def can_take_over(owner: int, user: OsUser) -> bool:
    """Whether the data of this owner may be given to `user`: only root can, and only that of `nobody`."""
    shared = find_os_account(SHARED_USER)
    return user.drops_privileges and not user.is_shared and shared is not None and owner == shared.pw_uid


def take_over_data_dir(data_dir: Path, user: OsUser) -> None:
    """Give every file to `user`, the directory itself last, so that an interrupted run is repeated.

    Other programs of the previous owner could write here. A file is therefore opened and checked first, and only files
    of that owner with a single name are given away: a hard link might be a file from elsewhere. Links are not followed.
    """
    from pabal.core.log import get_logger  # a command on a running server does not need it

    previous = data_dir.stat().st_uid
    top = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for folder, directories, files, handle in os.fwalk(".", topdown=False, dir_fd=top, follow_symlinks=False):
            for name in (*directories, *files):
                give_entry(data_dir / folder / name, name, handle, previous, user)
        give_handle(data_dir, top, previous, user)
    finally:
        os.close(top)
    get_logger().info(
        "data taken over", directory=str(data_dir), owner=user.name, previous_owner=os_user_name(previous)
    )


def give_entry(path: Path, name: str, folder: int, previous: int, user: OsUser) -> None:
    entry = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(entry.st_mode):  # may be removed by the owner of its directory
        return
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        give_handle(path, handle, previous, user)
    finally:
        os.close(handle)


def give_handle(path: Path, handle: int, previous: int, user: OsUser) -> None:
    entry = os.fstat(handle)
    is_single = stat.S_ISDIR(entry.st_mode) or (stat.S_ISREG(entry.st_mode) and entry.st_nlink == 1)
    if entry.st_uid not in (previous, user.uid) or not is_single:
        raise EmbeddedServerError(
            f"{path} is not a plain file of {os_user_name(previous)}, so the data is not given to {user.name}: "
            "remove it if it does not belong to the database, or restore the data from a backup"
        )
    os.fchown(handle, user.uid, user.gid)
