"""Service tokens: checking them, issuing and refreshing them, in process and over HTTP."""

import argparse
import asyncio
import base64
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import uvloop

from bench.engine import one_by_one
from bench.ground import Paced, connected, durable, middle, paced, show
from pabal.cli.hub.run import web_server
from pabal.core.actor import Actor
from pabal.core.errors import InvalidToken
from pabal.core.log import configure_logging
from pabal.db.embedded import ServerAddress
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from pabal.tokens import revoke
from pabal.tokens.issue import authenticate_client, issue_tokens
from pabal.tokens.issuer import TokenPair
from pabal.tokens.refresh import refresh_tokens
from pabal.tokens.revoke import revoke_family
from pabal.tokens.services import add_service

SERVICE = "bench_service"
BY = Actor(SERVICE, "127.0.0.1", "bench", "bench")
WARM = 200_000
COLD = 1_000
FEW, MANY = 1, 32

Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Bench:
    """Two hubs on one database, a service that knows its secret, and where the first hub serves."""

    hub: Hub
    other: Hub
    secret: str = field(repr=False)
    port: int

    async def grant(self) -> TokenPair:
        """What the token door does: see who it is, then issue."""
        async with self.hub.autocommit() as tx:
            client = await authenticate_client(tx, SERVICE, self.secret, BY)
        async with self.hub.autocommit() as tx:
            return await issue_tokens(tx, self.hub.token_issuer, client, client.allowed, BY)

    async def tokens(self, count: int) -> list[str]:
        return [(await self.grant()).access_token for _ in range(count)]


# Checking


async def warm(bench: Bench, tokens: Sequence[str]) -> float:
    """Tokens this process knows, one check after the other; the loop gets a turn as often as a server gives it one."""
    verify = bench.hub.token_verifier.verify
    for token in tokens:
        await verify(token)
    began = time.perf_counter()
    for number in range(WARM):
        await verify(tokens[number % len(tokens)])
        if number % 100 == 0:
            await asyncio.sleep(0)
    return WARM / (time.perf_counter() - began)


async def cold(bench: Bench, callers: int) -> float:
    """Tokens this process has not verified yet: each needs a signature check and a query."""
    unseen = await bench.tokens(COLD)

    async def caller() -> None:
        while unseen:
            await bench.hub.token_verifier.verify(unseen.pop())

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return COLD / (time.perf_counter() - began)


async def refused_after(bench: Bench) -> float:
    """Revoke in another hub while this one checks without pause; from its commit until the refusal here."""
    pair = await bench.grant()
    await bench.hub.token_verifier.verify(pair.access_token)

    async def refused() -> float:
        while True:
            try:
                await bench.hub.token_verifier.verify(pair.access_token)
            except InvalidToken:
                return time.perf_counter()
            await asyncio.sleep(0)

    checking = asyncio.create_task(refused())
    async with bench.other.transaction() as tx:
        await revoke_family(tx, pair.family_id, revoke.REVOKED_ON_REQUEST, BY)
    committed = time.perf_counter()
    return max(0.0, await checking - committed)  # the bell may be heard before the one who rang it goes on


# Issuing and refreshing


async def refreshing(bench: Bench) -> Call:
    """A caller with a family of its own, which refreshes it again and again."""
    pair = await bench.grant()

    async def call() -> None:
        nonlocal pair
        async with bench.hub.transaction() as tx:
            result = await refresh_tokens(
                tx, bench.hub.token_issuer, SERVICE, pair.refresh_token or "", requested=(), actor=BY
            )
        assert isinstance(result, TokenPair), result
        pair = result

    return call


class Line:
    """A kept connection that speaks just enough HTTP: a client library would be most of what is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str) -> None:
        self._reader = reader
        self._writer = writer
        self._shown = base64.b64encode(f"{SERVICE}:{secret}".encode()).decode()

    async def ask(self, **form: str) -> dict[str, Any]:
        body = urlencode(form)
        self._writer.write(
            (
                f"POST /oauth/token HTTP/1.1\r\nHost: hub\r\nAuthorization: Basic {self._shown}\r\n"
                f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            ).encode()
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer = await self._reader.readexactly(length)
        assert head.startswith(b"http/1.1 200"), answer
        return msgspec.json.decode(answer)

    async def grant(self) -> dict[str, Any]:
        return await self.ask(grant_type="client_credentials")

    async def refreshing(self) -> Call:
        pair = await self.grant()

        async def call() -> None:
            nonlocal pair
            pair = await self.ask(grant_type="refresh_token", refresh_token=pair["refresh_token"])

        return call

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def lines(bench: Bench, count: int) -> AsyncGenerator[list[Line]]:
    opened = [Line(*await asyncio.open_connection("127.0.0.1", bench.port), bench.secret) for _ in range(count)]
    try:
        yield opened
    finally:
        for line in opened:
            line.close()


async def rates(bench: Bench, owner: Any, url: str, callers: int, seconds: float) -> dict[str, Paced]:
    """One round of everything at this many callers."""
    commits = await one_by_one(owner, url, callers, seconds)
    async with lines(bench, callers) as wires:
        return {
            "commit": Paced(0, commits, 0, 0),
            "issue": await paced([bench.grant] * callers, seconds),
            "refresh": await paced([await refreshing(bench) for _ in range(callers)], seconds),
            "issue over HTTP": await paced([wire.grant for wire in wires], seconds),
            "refresh over HTTP": await paced([await wire.refreshing() for wire in wires], seconds),
        }


@asynccontextmanager
async def ready(endpoint: ServerAddress) -> AsyncGenerator[Bench]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pabal-bench-")))
        settings = Settings(_env_file=None, data_dir=folder)  # pyright: ignore[reportCallIssue]
        configure_logging("error", "json")
        database_urls = DatabaseUrls(endpoint.hub_url, endpoint.owner_url)
        hub = await stack.enter_async_context(open_hub(settings, database_urls))
        other = await stack.enter_async_context(open_hub(settings, database_urls))
        async with hub.transaction() as tx:
            _, secret = await add_service(tx, SERVICE, ["write"], Actor("bench"))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server = web_server(hub)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield Bench(hub, other, secret, listener.getsockname()[1])
        server.stop()
        await serving


async def measure(endpoint: ServerAddress, rounds: int, seconds: float) -> None:
    async with ready(endpoint) as bench, connected(endpoint.owner_url) as owner:
        few, many = await bench.tokens(1), await bench.tokens(1000)
        checks: dict[str, list[float]] = {}
        results: dict[tuple[str, int], list[Paced]] = {}
        for _ in range(rounds):
            for name, check in {
                "warm, one token": lambda: warm(bench, few),
                "warm, 1,000 tokens in turn": lambda: warm(bench, many),
                "never seen before, 1 caller": lambda: cold(bench, FEW),
                "never seen before, 32 callers": lambda: cold(bench, MANY),
            }.items():
                checks.setdefault(name, []).append(await check())
            for callers in (FEW, MANY):
                for name, runs in (await rates(bench, owner, endpoint.hub_url, callers, seconds)).items():
                    results.setdefault((name, callers), []).append(runs)
        refusals = sorted([await refused_after(bench) for _ in range(100)])

    show("Checking an access token", ["", "tokens/s"], [[name, middle(values)] for name, values in checks.items()])
    show(
        "A token revoked in another hub is refused here, after its commit",
        ["", "p50 ms", "p99 ms"],
        [["100 times, checked without pause", refusals[50] * 1000, refusals[99] * 1000]],
    )
    for callers in (FEW, MANY):
        commits = middle([run.rate for run in results["commit", callers]])
        show(
            f"Tokens at {callers} caller{'s' if callers > 1 else ''}; ratio to one insert per commit in the same run",
            ["", "per second", "p50 ms", "p99 ms", "ratio"],
            [
                [
                    name,
                    middle([run.rate for run in runs]),
                    middle([run.p50 for run in runs]) * 1000 if name != "commit" else "",
                    middle([run.p99 for run in runs]) * 1000 if name != "commit" else "",
                    middle([run.rate for run in runs]) / commits,
                ]
                for (name, at), runs in results.items()
                if at == callers
            ],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    args = parser.parse_args()
    with durable() as endpoint, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(endpoint, args.rounds, args.seconds))


if __name__ == "__main__":
    main()
