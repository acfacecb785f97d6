"""Connections to a hub: both clients behind one interface, and a proxy that loses responses."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from pabal_client import AsyncClient, Client
from support.fault_proxy import FaultProxy

Connect = Callable[..., AbstractAsyncContextManager[Any]]
"""Opens the sync or async client; its methods are awaited."""
ANSWER = b"HTTP/1.1 "


@dataclass(frozen=True, slots=True)
class HubAddress:
    """The URL and credentials for a client."""

    url: str
    service: str
    secret: str = field(repr=False)

    def client(self, **options: Any) -> AsyncClient:
        return AsyncClient(self.url, self.service, self.secret, **options)


class AwaitableClient:
    """The sync client with the interface of the async one: each call runs in a thread."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(getattr(self.client, name), *args, **kwargs)

        return call


class LossyProxy(FaultProxy):
    """A proxy for HTTP that can lose responses of the hub."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.lose = 0

    async def _startup(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:  # noqa: ARG002 the signature of the base class
        return b""  # HTTP has no startup message

    async def _pump_answers(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_deaf: asyncio.Event,  # noqa: ARG002 the signature of the base class
        number: int,  # noqa: ARG002
    ) -> None:
        while data := await reader.read(65536):
            if self.lose and data.startswith(ANSWER):
                self.lose -= 1
                self.reset()
                return
            writer.write(data)
