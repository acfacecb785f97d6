"""HTTP clients that never repeat a request: whatever the server does to a connection that it did not announce fails."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from support.raw_http import PATIENCE

Headers = dict[str, str]


class StrictClient:
    """A client with one keep-alive connection, which it replaces only after `Connection: close`."""

    def __init__(self, port: int, headers: Headers | None = None) -> None:
        self._port = port
        self._headers = headers or {}
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Send a request; returns the status and the JSON body. Raises if the connection ends without a response."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        content = b"" if body is None else json.dumps(body).encode()
        writer.write(encode_head(method, path, self._headers | headers, len(content)) + content)
        async with asyncio.timeout(PATIENCE):
            status, response_headers = await read_head(reader)
            data = await reader.readexactly(int(response_headers["content-length"]))
        if response_headers.get("connection") == "close":
            self.close()
        return status, json.loads(data)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def stream_blocks(port: int, path: str, headers: Headers) -> AsyncGenerator[dict[str, str]]:
    """The events of one stream, until its clean end. Raises if the end is not clean, or the status is not 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(encode_head("GET", path, headers, 0))
        status, _ = await read_head(reader)
        assert status == 200, status
        buffer = b""
        while size := int(await reader.readline(), 16):
            buffer += (await reader.readexactly(size + 2))[:-2]
            *blocks, buffer = buffer.split(b"\n\n")
            for block in blocks:
                yield dict(line.split(": ", 1) for line in block.decode().split("\n") if not line.startswith(":"))
        assert buffer == b""
    finally:
        writer.close()


def encode_head(method: str, path: str, headers: Headers, length: int) -> bytes:
    fields = {"host": "hub", "content-type": "application/json", "content-length": str(length)} | headers
    return "\r\n".join([f"{method} {path} HTTP/1.1", *map(": ".join, fields.items()), "", ""]).encode()


async def read_head(reader: asyncio.StreamReader) -> tuple[int, Headers]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.lower(): value for name, value in pairs}
