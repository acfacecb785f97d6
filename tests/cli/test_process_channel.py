"""The channel between a supervisor and a child, which may be of another version after an upgrade."""

import socket

import msgspec
import pytest

from pabal.cli.processes.channel import ChildMessage, ChildReady, ProcessChannel, open_channel

pytestmark = pytest.mark.anyio


async def test_a_message_that_this_version_does_not_know_is_skipped() -> None:
    ours, theirs = socket.socketpair()
    channel: ProcessChannel[ChildMessage] = await open_channel(ChildMessage, ours)
    with theirs:
        for message in ({"type": "of a later version"}, ChildReady()):
            data = msgspec.msgpack.encode(message)
            theirs.sendall(len(data).to_bytes(4, "big") + data)

        assert await channel.receive() == ChildReady()
    assert await channel.receive() is None
    await channel.close()
