"""Ways to a hub: a client of either kind, and a network that loses answers."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from pabal.client import AsyncClient, Client
from support.fault_proxy import FaultProxy

Connect = Callable[..., AbstractAsyncContextManager[Any]]
"""Opens a client whose calls are awaited, whichever of the two it is."""
ANSWER = b"HTTP/1.1 "


@dataclass(frozen=True, slots=True)
class Way:
    """What a client needs to find its hub."""

    address: str
    service: str
    secret: str = field(repr=False)

    def client(self, **how: Any) -> AsyncClient:
        return AsyncClient(self.address, self.service, self.secret, **how)


class Threaded:
    """A client that waits, behind the face of one that awaits: each call is a thread's."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*given: Any, **named: Any) -> Any:
            return await asyncio.to_thread(getattr(self.client, name), *given, **named)

        return call


class Line(FaultProxy):
    """A network for HTTP: it can lose answers after the hub has given them."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.lose = 0

    async def _startup(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:  # noqa: ARG002 as its parent has it
        return b""  # HTTP has nothing to say before the first request

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.lose and data.startswith(ANSWER):
                self.lose -= 1
                self.reset()
                return
            writer.write(data)
