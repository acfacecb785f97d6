"""The messages between the supervisor and a child, over a socket pair. Its end tells each side that the other ended."""

import asyncio
import socket
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from pabal.core.metric_snapshot import MetricSnapshot

LENGTH_BYTES = 4
MAX_MESSAGE_BYTES = 64 * 1_048_576
"""A snapshot has about a hundred bytes per series."""


class ChildReady(msgspec.Struct, frozen=True, tag="ready"):
    """From a child: it accepts requests."""


class MetricsTotalRequest(msgspec.Struct, frozen=True, tag="sum"):
    """From a child: the metrics of this process; add those of the others."""

    number: int
    snapshot: MetricSnapshot


class MetricsReport(msgspec.Struct, frozen=True, tag="report"):
    """From a child: its metrics, as requested by this number; 0 for the last report before it ends."""

    number: int
    snapshot: MetricSnapshot


class MetricsReportRequest(msgspec.Struct, frozen=True, tag="collect"):
    """From the supervisor: report the metrics of this process."""

    number: int


class MetricsTotal(msgspec.Struct, frozen=True, tag="total"):
    """From the supervisor: the metrics of all processes."""

    number: int
    snapshot: MetricSnapshot


class DrainRequest(msgspec.Struct, frozen=True, tag="drain"):
    """From the supervisor: another process has taken over; finish what is open and end."""


ChildMessage = ChildReady | MetricsTotalRequest | MetricsReport
SupervisorMessage = MetricsReportRequest | MetricsTotal | DrainRequest

ReceivedT = TypeVar("ReceivedT")


class ProcessChannel(Generic[ReceivedT]):
    """One end of the socket pair. `received_type` is what the other side sends."""

    def __init__(self, received_type: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._decode = msgspec.msgpack.Decoder(received_type).decode
        self._reader = reader
        self._writer = writer

    def send(self, message: ChildMessage | SupervisorMessage) -> None:
        """Send without waiting. What the other side no longer reads is lost, and its end is noticed by `receive`."""
        if not self._writer.is_closing():
            data = msgspec.msgpack.encode(message)
            self._writer.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)

    async def receive(self) -> ReceivedT | None:
        """The next message; None if the other side has ended. One that only another version knows is skipped."""
        while True:
            try:
                length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
                data = await self._reader.readexactly(length)
            except (asyncio.IncompleteReadError, OSError):
                return None
            with suppress(msgspec.ValidationError):
                return self._decode(data)  # pyright: ignore[reportReturnType] the decoder's type

    async def close(self) -> None:
        """Send what is pending and close."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # the other side ended first


async def open_channel(received_type: object, end: socket.socket) -> ProcessChannel[ReceivedT]:
    reader, writer = await asyncio.open_connection(sock=end, limit=MAX_MESSAGE_BYTES)
    return ProcessChannel(received_type, reader, writer)
