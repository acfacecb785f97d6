"""The data directory of one major version, created atomically, and the roles' passwords beside it."""

import json
import os
import secrets
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from pabal.core.errors import EmbeddedServerError
from pabal.db.embedded.data_dir import make_temporary_dir, sync_directory, write_file_atomically
from pabal.db.embedded.environment import ServerEnvironment
from pabal.db.embedded.os_user import os_user_name
from pabal.db.embedded.postmaster import ERROR_LINE, extract_error
from pabal.db.embedded.takeover import can_take_over

LOOPBACK_HOST = "127.0.0.1"
DATABASE_NAME = "pabal"
OWNER_ROLE = "pabal"  # superuser: migrations, LISTEN
HUB_ROLE = "pabal_hub"  # login role of the hub


@dataclass(frozen=True, slots=True)
class RolePasswords:
    """The passwords of the two roles."""

    owner: str = field(repr=False)
    hub: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """How to connect to a running server."""

    host: str
    port: int
    database: str
    owner_url: str = field(repr=False)
    hub_url: str = field(repr=False)

    @classmethod
    def for_port(cls, port: int, passwords: RolePasswords) -> "ServerAddress":
        location = f"{LOOPBACK_HOST}:{port}/{DATABASE_NAME}"
        return cls(
            LOOPBACK_HOST,
            port,
            DATABASE_NAME,
            owner_url=f"postgresql://{OWNER_ROLE}:{passwords.owner}@{location}",
            hub_url=f"postgresql://{HUB_ROLE}:{passwords.hub}@{location}",
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """The data directory (PGDATA) of one major version inside the data root."""

    data_root: Path
    major: int

    @property
    def data_dir(self) -> Path:
        return self.data_root / f"postgres-{self.major}"

    @property
    def is_initialized(self) -> bool:
        return (self.data_dir / "PG_VERSION").is_file()

    def read_passwords(self) -> RolePasswords | None:
        """Return the passwords of the roles, or None if the file is missing or damaged."""
        try:
            passwords = json.loads((self.data_root / "passwords.json").read_text())
            return RolePasswords(owner=passwords[OWNER_ROLE], hub=passwords[HUB_ROLE])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def write_passwords(self, passwords: RolePasswords) -> None:
        write_file_atomically(
            self.data_root / "passwords.json", json.dumps({OWNER_ROLE: passwords.owner, HUB_ROLE: passwords.hub})
        )


def list_clusters(data_root: Path) -> list[Cluster]:
    """List the initialized clusters, newest version first."""
    majors = [path.name.removeprefix("postgres-") for path in data_root.glob("postgres-*") if path.is_dir()]
    clusters = [Cluster(data_root, int(major)) for major in majors if major.isdigit()]
    return sorted((cluster for cluster in clusters if cluster.is_initialized), key=lambda cluster: -cluster.major)


def choose_cluster(data_root: Path, environment: ServerEnvironment) -> Cluster:
    """Choose the cluster of the binaries' version. Data of another version is an error, never ignored."""
    binaries, user = environment.binaries, environment.user
    cluster = Cluster(data_root, binaries.major)
    if cluster.is_initialized:
        owner = cluster.data_dir.stat().st_uid
        if owner != user.uid and not can_take_over(owner, user):
            raise EmbeddedServerError(
                f"{cluster.data_dir} belongs to {os_user_name(owner)}, but the server would run as {user.name}: "
                "start as the user that created it, or choose another data directory"
            )
        return cluster
    if cluster.data_dir.is_dir() and any(cluster.data_dir.iterdir()):
        raise EmbeddedServerError(f"{cluster.data_dir} is not empty and contains no PostgreSQL data: move it away")
    others = list_clusters(data_root)
    if others:
        raise EmbeddedServerError(
            f"the data in {others[0].data_dir} is from PostgreSQL {others[0].major}, but the binaries in "
            f"{binaries.directory} are {binaries.version}: "
            + (
                f"load it into {cluster.data_dir} with `pabal upgrade-database`, or "
                if others[0].major < binaries.major
                else ""
            )
            + f"set PABAL_PG_BIN to binaries of version {others[0].major}"
        )
    return cluster


def create_cluster(cluster: Cluster, environment: ServerEnvironment) -> RolePasswords:
    """Create the data directory under a temporary name and rename it when it is complete.

    The temporary name is unique, because an initdb that outlived its killed parent may still write to its own.
    """
    temporary = make_temporary_dir(cluster.data_dir)
    try:
        passwords, user = generate_passwords(), environment.user
        pwfile = temporary / "password"
        pwfile.write_text(passwords.owner)
        if user.drops_privileges:
            os.chown(pwfile, user.uid, user.gid)
            os.chown(temporary, user.uid, user.gid)
        data = temporary / "data"
        flags = ("-U", OWNER_ROLE, "-A", "scram-sha-256", f"--pwfile={pwfile}", "-E", "UTF8", "--locale=C.UTF-8", "-k")
        run_initdb(environment, "-D", data, *flags, "--no-sync")
        pwfile.unlink()
        run_single_user(
            data,
            replace(environment, options={**environment.options, "fsync": "off"}),  # everything is synced once, below
            f"create role {HUB_ROLE} login nosuperuser inherit password '{passwords.hub}'",
            f"create database {DATABASE_NAME} owner {OWNER_ROLE}",
        )
        if environment.options.get("fsync") != "off":
            run_initdb(environment, "-D", data, "--sync-only")
        cluster.write_passwords(passwords)
        data.rename(cluster.data_dir)
        sync_directory(cluster.data_root)
        return passwords
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def run_initdb(environment: ServerEnvironment, *arguments: str | Path) -> None:
    result = environment.user.run((environment.binaries.initdb, *arguments))
    if result.returncode != 0:
        raise EmbeddedServerError(f"initdb failed: {extract_error(result.stdout)}")


def reset_passwords(cluster: Cluster, environment: ServerEnvironment) -> RolePasswords:
    """Give both roles new passwords, because the password file was lost. The data directory's owner may do so."""
    passwords = generate_passwords()
    roles = ((OWNER_ROLE, passwords.owner), (HUB_ROLE, passwords.hub))
    statements = [f"alter role {role} password '{password}'" for role, password in roles]
    run_single_user(cluster.data_dir, environment, *statements)
    cluster.write_passwords(passwords)
    return passwords


def run_single_user(data_dir: Path, environment: ServerEnvironment, *statements: str) -> None:
    """Run statements in single-user mode. They are passed by pipe, so that no password shows in the process list."""
    command = (environment.binaries.postgres, "--single", *environment.command_line_arguments(data_dir), "postgres")
    result = environment.user.run(command, stdin="".join(f"{statement};\n" for statement in statements))
    if result.returncode != 0 or ERROR_LINE.search(result.stdout):  # single-user mode exits with 0 even after an error
        raise EmbeddedServerError(f"cannot create the roles in {data_dir}: {extract_error(result.stdout)}")


def generate_passwords() -> RolePasswords:
    return RolePasswords(owner=secrets.token_urlsafe(32), hub=secrets.token_urlsafe(32))
