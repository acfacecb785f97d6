"""How fast a command starts, and what it must not import for that."""

import resource
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from support.pabal_process import PABAL, environment
from support.terminal import Terminal, read_line

HEAVY_MODULES = (
    *("argon2", "cryptography", "httpx2", "jinja2", "joserfc", "opentelemetry", "prometheus_client", "pydantic"),
    *("pydantic_settings", "starlette", "structlog", "uvicorn", "uvloop", "pabal.hub", "pabal.web.app"),
)
PROBE = """
import sys
from pabal.cli import main
try:
    main()
finally:
    sys.stderr.write(" ".join(name for name in {heavy} if name in sys.modules))
"""
CPU_SECONDS = {"version": 0.1, "event": 0.25}
SLACK = 2.5
"""The suite shares two cores; on an idle machine `version` takes 0.02 s and `event list` 0.18 s."""


def run_with_rusage(*args: str, folder: Path, variables: dict[str, str]) -> float:
    """The user and system CPU seconds of a command, in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([PABAL, *args], check=True, capture_output=True, cwd=folder, env=environment(**variables))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def heavy_imports(*args: str, folder: Path, variables: dict[str, str], heavy: tuple[str, ...]) -> list[str]:
    """Which of the heavy modules a command imports."""
    result = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=heavy), *args],
        check=True,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(**variables),
    )
    return result.stderr.split()


def test_version_imports_neither_the_parser_nor_the_driver(folder: Path) -> None:
    heavy = (*HEAVY_MODULES, "asyncio", "asyncpg", "cyclopts", "msgspec", "rich")

    assert heavy_imports("version", folder=folder, variables={}, heavy=heavy) == []


def test_help_imports_no_command(folder: Path) -> None:
    heavy = (*HEAVY_MODULES, "asyncpg", "pabal.cli.events.event", "pabal.cli.hub.serve")

    assert heavy_imports("--help", folder=folder, variables={}, heavy=heavy) == []


@pytest.mark.anyio
async def test_event_list_imports_nothing_of_the_server(terminal: Terminal) -> None:
    await terminal.event_queue.publish()

    imported = heavy_imports("event", "list", folder=terminal.folder, variables=terminal.variables, heavy=HEAVY_MODULES)

    assert imported == []


@pytest.mark.anyio
@pytest.mark.parametrize("args", [("version",), ("event", "list")], ids=" ".join)
async def test_a_command_starts_within_its_cpu_budget(terminal: Terminal, args: tuple[str, ...]) -> None:
    seconds = min(run_with_rusage(*args, folder=terminal.folder, variables=terminal.variables) for _ in range(5))

    assert seconds < CPU_SECONDS[args[0]] * SLACK


@pytest.fixture
def ignored_interrupt() -> Generator[None]:
    """SIGINT is ignored, as under `nohup make test &`. A child inherits that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.anyio
@pytest.mark.usefixtures("ignored_interrupt")
async def test_ctrl_c_ends_tail_although_the_test_run_ignores_it(terminal: Terminal) -> None:
    async with terminal.follow("event") as command:
        event = await terminal.event_queue.publish()
        assert str(event) in await read_line(command)

    assert command.returncode == 130
