"""The data of one major version, made whole or not at all, and the passwords kept beside it."""

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

LOOPBACK_HOST = "127.0.0.1"
DATABASE_NAME = "pabal"
OWNER_ROLE = "pabal"  # superuser: migrations, LISTEN
HUB_ROLE = "pabal_hub"  # login role: the work


@dataclass(frozen=True, slots=True)
class RolePasswords:
    """What the two roles log in with."""

    owner: str = field(repr=False)
    hub: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """How to reach a running server."""

    host: str
    port: int
    database: str
    owner_url: str = field(repr=False)
    hub_url: str = field(repr=False)

    @classmethod
    def for_port(cls, port: int, passwords: RolePasswords) -> "ServerAddress":
        place = f"{LOOPBACK_HOST}:{port}/{DATABASE_NAME}"
        return cls(
            LOOPBACK_HOST,
            port,
            DATABASE_NAME,
            owner_url=f"postgresql://{OWNER_ROLE}:{passwords.owner}@{place}",
            hub_url=f"postgresql://{HUB_ROLE}:{passwords.hub}@{place}",
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """PGDATA of one major version inside the data root."""

    data_root: Path
    major: int

    @property
    def data_dir(self) -> Path:
        return self.data_root / f"postgres-{self.major}"

    @property
    def is_initialized(self) -> bool:
        return (self.data_dir / "PG_VERSION").is_file()

    def read_passwords(self) -> RolePasswords | None:
        """Return the passwords of the roles, or None when they were never written or were lost."""
        try:
            kept = json.loads((self.data_root / "passwords.json").read_text())
            return RolePasswords(owner=kept[OWNER_ROLE], hub=kept[HUB_ROLE])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def write_passwords(self, passwords: RolePasswords) -> None:
        write_file_atomically(
            self.data_root / "passwords.json", json.dumps({OWNER_ROLE: passwords.owner, HUB_ROLE: passwords.hub})
        )


def list_clusters(data_root: Path) -> list[Cluster]:
    """List what is there, newest version first."""
    majors = [path.name.removeprefix("postgres-") for path in data_root.glob("postgres-*") if path.is_dir()]
    found = [Cluster(data_root, int(major)) for major in majors if major.isdigit()]
    return sorted((cluster for cluster in found if cluster.is_initialized), key=lambda cluster: -cluster.major)


def choose_cluster(data_root: Path, environment: ServerEnvironment) -> Cluster:
    """Find the data these binaries can read; data only others can read is never passed over in silence."""
    binaries, account = environment.binaries, environment.user
    mine = Cluster(data_root, binaries.major)
    if mine.is_initialized:
        owner = mine.data_dir.stat().st_uid
        if owner != account.uid:
            raise EmbeddedServerError(
                f"{mine.data_dir} belongs to {os_user_name(owner)}, and the server would run as {account.name}: "
                "start as the user who made it, or choose another data folder"
            )
        return mine
    if mine.data_dir.is_dir() and any(mine.data_dir.iterdir()):
        raise EmbeddedServerError(f"{mine.data_dir} is not empty and holds no PostgreSQL data: move it away")
    others = list_clusters(data_root)
    if others:
        raise EmbeddedServerError(
            f"the data in {others[0].data_dir} is of PostgreSQL {others[0].major} and the binaries in {binaries.directory} "  # noqa: E501
            f"are {binaries.version}: set PABAL_PG_BIN to binaries of version {others[0].major}, "
            f"or bring the data to {mine.data_dir} with pg_upgrade or a dump"
        )
    return mine


def create_cluster(cluster: Cluster, environment: ServerEnvironment) -> RolePasswords:
    """Make the data folder beside its place and move it in when it is whole, so a killed start leaves nothing to trust.

    The half-made folder has a name of its own each time: an initdb that outlived its killed starter may still write.
    """
    half = make_temporary_dir(cluster.data_dir)
    try:
        passwords, account = generate_passwords(), environment.user
        pwfile = half / "password"
        pwfile.write_text(passwords.owner)
        if account.drops_privileges:
            os.chown(pwfile, account.uid, account.gid)
            os.chown(half, account.uid, account.gid)
        data = half / "data"
        flags = ("-U", OWNER_ROLE, "-A", "scram-sha-256", f"--pwfile={pwfile}", "-E", "UTF8", "--locale=C.UTF-8", "-k")
        run_initdb(environment, "-D", data, *flags, "--no-sync")
        pwfile.unlink()
        run_single_user(
            data,
            replace(environment, options={**environment.options, "fsync": "off"}),  # all of it is synced at once, below
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
        shutil.rmtree(half, ignore_errors=True)


def run_initdb(environment: ServerEnvironment, *arguments: str | Path) -> None:
    done = environment.user.run((environment.binaries.initdb, *arguments))
    if done.returncode != 0:
        raise EmbeddedServerError(f"initdb failed: {extract_error(done.stdout)}")


def reset_passwords(cluster: Cluster, environment: ServerEnvironment) -> RolePasswords:
    """Give both roles new passwords, when the file that held them was lost; whoever reads the folder owns it anyway."""
    passwords = generate_passwords()
    given = ((OWNER_ROLE, passwords.owner), (HUB_ROLE, passwords.hub))
    orders = [f"alter role {role} password '{password}'" for role, password in given]
    run_single_user(cluster.data_dir, environment, *orders)
    cluster.write_passwords(passwords)
    return passwords


def run_single_user(data_dir: Path, environment: ServerEnvironment, *statements: str) -> None:
    """Run statements with nobody else connected; they travel by pipe, so no password shows in the process list."""
    command = (environment.binaries.postgres, "--single", *environment.command_line_arguments(data_dir), "postgres")
    done = environment.user.run(command, stdin="".join(f"{statement};\n" for statement in statements))
    if done.returncode != 0 or ERROR_LINE.search(done.stdout):  # single-user mode ends well even after an error
        raise EmbeddedServerError(f"the roles could not be made in {data_dir}: {extract_error(done.stdout)}")


def generate_passwords() -> RolePasswords:
    return RolePasswords(owner=secrets.token_urlsafe(32), hub=secrets.token_urlsafe(32))
