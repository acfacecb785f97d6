"""`tail`: print changes of a lane as they happen."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pabal.cli.context import with_hub
from pabal.cli.options import Connection
from pabal.cli.output import print_error, stderr_console
from pabal.core.errors import Unavailable
from pabal.db.doorbell.channels import Channel
from pabal.db.tx import Tx

if TYPE_CHECKING:
    from pabal.hub import Hub


class LaneFollower(Protocol):
    """Remembers what it has reported and returns the changes since."""

    async def start(self, tx: Tx) -> None: ...
    async def poll(self, tx: Tx) -> Sequence[Any]: ...


def follow_lane(
    connection: Connection,
    noun: str,
    follower: LaneFollower,
    channel: Channel,
    print_change: Callable[[Any], None],
) -> None:
    """Poll on every notification, and at least once a second. While the database is away, keep trying."""
    from pabal.db.doorbell.doorbell import POLL_INTERVAL

    async def follow(hub: "Hub") -> None:
        with hub.doorbell.listen(channel) as listener:
            async with hub.autocommit() as tx:
                await follower.start(tx)
            stderr_console.print(f"Following {noun}. Press Ctrl-C to stop.")
            while True:
                await listener.wait(POLL_INTERVAL)
                try:
                    async with hub.autocommit() as tx:
                        changes = await follower.poll(tx)
                except Unavailable as error:
                    print_error(str(error))
                    await asyncio.sleep(POLL_INTERVAL.total_seconds())
                    continue
                for change in changes:
                    print_change(change)

    with_hub(connection, follow)
