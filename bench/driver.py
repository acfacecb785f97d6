"""An HTTP load driver: keep-alive connections that send the next request after each response.

It writes the same bytes each time and only searches for the end of a response, so that it measures the hub.

python -m bench.driver PORT PATH CONNECTIONS SECONDS < a JSON object: the token and the body
"""

import asyncio
import json
import resource
import sys
import time
from typing import cast

import httptools
import uvloop


class DriverConnection(asyncio.Protocol):
    """One connection, and the latency of its responses."""

    def __init__(self, request: bytes, durations: list[float]) -> None:
        self._request = request
        self._durations = durations
        self._parser = httptools.HttpResponseParser(self)
        self._sent_at = 0.0
        self.stopping = False
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if not 200 <= status < 300:
            self.closed.set_exception(RuntimeError(f"the hub returned HTTP {status}"))
            self._transport.close()
            return
        self._durations.append(time.perf_counter() - self._sent_at)
        self._parser = httptools.HttpResponseParser(self)
        if self.stopping:
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None) if self.stopping else self.closed.set_exception(exc or EOFError())

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)


async def drive(port: int, request: bytes, connections: int, seconds: float) -> dict[str, float]:
    durations: list[float] = []
    loop = asyncio.get_running_loop()
    open_connections: list[DriverConnection] = []
    began = time.perf_counter()
    for _ in range(connections):
        _, connection = await loop.create_connection(lambda: DriverConnection(request, durations), "127.0.0.1", port)
        open_connections.append(connection)
    await asyncio.wait(
        [connection.closed for connection in open_connections], timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
    )
    for connection in open_connections:
        connection.stopping = True
    await asyncio.gather(*(connection.closed for connection in open_connections))
    spent = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    durations.sort()
    return {
        "requests": len(durations),
        "rate": len(durations) / spent,
        "p50": durations[len(durations) // 2],
        "p99": durations[int(len(durations) * 0.99)],
        "spent": spent,
        "used": used.ru_utime + used.ru_stime,
    }


def main() -> None:
    port, path, connections, seconds = sys.argv[1:]
    command = json.load(sys.stdin)
    body = command["body"].encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {command['token']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(drive(int(port), head.encode() + body, int(connections), float(seconds)))))


if __name__ == "__main__":
    main()
