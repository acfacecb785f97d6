"""The data of one major version, made whole or not at all, and the passwords kept beside it."""

import json
import os
import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from pabal.core.errors import EmbeddedFailed
from pabal.db.embedded import folder
from pabal.db.embedded.account import name_of
from pabal.db.embedded.complaint import BLAME, complaint
from pabal.db.embedded.endpoint import DATABASE, HUB, OWNER, Passwords
from pabal.db.embedded.means import Means


@dataclass(frozen=True, slots=True)
class Cluster:
    """PGDATA of one major version inside the data root."""

    home: Path
    major: int

    @property
    def data(self) -> Path:
        return self.home / f"postgres-{self.major}"

    @property
    def made(self) -> bool:
        return (self.data / "PG_VERSION").is_file()

    def passwords(self) -> Passwords | None:
        """Return the passwords of the roles, or None when they were never written or were lost."""
        try:
            kept = json.loads((self.home / "passwords.json").read_text())
            return Passwords(owner=kept[OWNER], hub=kept[HUB])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def keep(self, passwords: Passwords) -> None:
        folder.write(self.home / "passwords.json", json.dumps({OWNER: passwords.owner, HUB: passwords.hub}))


def clusters(home: Path) -> list[Cluster]:
    """List what is there, newest version first."""
    majors = [path.name.removeprefix("postgres-") for path in home.glob("postgres-*") if path.is_dir()]
    found = [Cluster(home, int(major)) for major in majors if major.isdigit()]
    return sorted((cluster for cluster in found if cluster.made), key=lambda cluster: -cluster.major)


def choose(home: Path, means: Means) -> Cluster:
    """Find the data these binaries can read; data only others can read is never passed over in silence."""
    binaries, account = means.binaries, means.account
    mine = Cluster(home, binaries.major)
    if mine.made:
        owner = mine.data.stat().st_uid
        if owner != account.uid:
            raise EmbeddedFailed(
                f"{mine.data} belongs to {name_of(owner)}, and the server would run as {account.name}: "
                "start as the user who made it, or choose another data folder"
            )
        return mine
    if mine.data.is_dir() and any(mine.data.iterdir()):
        raise EmbeddedFailed(f"{mine.data} is not empty and holds no PostgreSQL data: move it away")
    others = clusters(home)
    if others:
        raise EmbeddedFailed(
            f"the data in {others[0].data} is of PostgreSQL {others[0].major} and the binaries in {binaries.folder} "
            f"are {binaries.version}: set PABAL_PG_BIN to binaries of version {others[0].major}, "
            f"or bring the data to {mine.data} with pg_upgrade or a dump"
        )
    return mine


def create(cluster: Cluster, means: Means) -> Passwords:
    """Make the data folder beside its place and move it in when it is whole, so a killed start leaves nothing to trust.

    The half-made folder has a name of its own each time: an initdb that outlived its killed starter may still write.
    """
    half = folder.half(cluster.data)
    try:
        passwords, account = fresh(), means.account
        pwfile = half / "password"
        pwfile.write_text(passwords.owner)
        if account.lent:
            os.chown(pwfile, account.uid, account.gid)
            os.chown(half, account.uid, account.gid)
        data = half / "data"
        flags = ("-U", OWNER, "-A", "scram-sha-256", f"--pwfile={pwfile}", "-E", "UTF8", "--locale=C.UTF-8", "-k")
        initdb(means, "-D", data, *flags, "--no-sync")
        pwfile.unlink()
        alone(
            data,
            replace(means, options={**means.options, "fsync": "off"}),  # all of it is synced at once, below
            f"create role {HUB} login nosuperuser inherit password '{passwords.hub}'",
            f"create database {DATABASE} owner {OWNER}",
        )
        if means.options.get("fsync") != "off":
            initdb(means, "-D", data, "--sync-only")
        cluster.keep(passwords)
        data.rename(cluster.data)
        folder.settle(cluster.home)
        return passwords
    finally:
        shutil.rmtree(half, ignore_errors=True)


def initdb(means: Means, *words: str | Path) -> None:
    done = means.account.run((means.binaries.initdb, *words))
    if done.returncode != 0:
        raise EmbeddedFailed(f"initdb failed: {complaint(done.stdout)}")


def renew_passwords(cluster: Cluster, means: Means) -> Passwords:
    """Give both roles new passwords, when the file that held them was lost; whoever reads the folder owns it anyway."""
    passwords = fresh()
    given = ((OWNER, passwords.owner), (HUB, passwords.hub))
    orders = [f"alter role {role} password '{password}'" for role, password in given]
    alone(cluster.data, means, *orders)
    cluster.keep(passwords)
    return passwords


def alone(data: Path, means: Means, *statements: str) -> None:
    """Run statements with nobody else connected; they travel by pipe, so no password shows in the process list."""
    command = (means.binaries.postgres, "--single", *means.words(data), "postgres")
    done = means.account.run(command, stdin="".join(f"{statement};\n" for statement in statements))
    if done.returncode != 0 or BLAME.search(done.stdout):  # single-user mode ends well even after an error
        raise EmbeddedFailed(f"the roles could not be made in {data}: {complaint(done.stdout)}")


def fresh() -> Passwords:
    return Passwords(owner=secrets.token_urlsafe(32), hub=secrets.token_urlsafe(32))
