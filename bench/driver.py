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


class Line(asyncio.Protocol):
    """One connection, and the latency of its responses."""

    def __init__(self, request: bytes, took: list[float]) -> None:
        self._request = request
        self._took = took
        self._parser = httptools.HttpResponseParser(self)
        self._asked = 0.0
        self.stopping = False
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if not 200 <= status < 300:
            self.gone.set_exception(RuntimeError(f"the hub returned HTTP {status}"))
            self._transport.close()
            return
        self._took.append(time.perf_counter() - self._asked)
        self._parser = httptools.HttpResponseParser(self)
        if self.stopping:
            self._transport.close()
        else:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None) if self.stopping else self.gone.set_exception(exc or EOFError())

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        self._transport.write(self._request)


async def drive(port: int, request: bytes, connections: int, seconds: float) -> dict[str, float]:
    took: list[float] = []
    loop = asyncio.get_running_loop()
    lines: list[Line] = []
    began = time.perf_counter()
    for _ in range(connections):
        _, line = await loop.create_connection(lambda: Line(request, took), "127.0.0.1", port)
        lines.append(line)
    await asyncio.wait([connection.gone for connection in lines], timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for connection in lines:
        connection.stopping = True
    await asyncio.gather(*(connection.gone for connection in lines))
    spent = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    took.sort()
    return {
        "rate": len(took) / spent,
        "p50": took[len(took) // 2],
        "p99": took[int(len(took) * 0.99)],
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
