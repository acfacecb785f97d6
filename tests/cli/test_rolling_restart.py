"""A rolling restart under load: no request fails, nothing is lost, and streams end with a hint to come back."""

import asyncio
import json
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pabal.hub import DatabaseUrls
from relay.plugin_wire import HERMES, OPENCLAW, PluginWire, running_plugin
from support.pabal_process import PROCESS_TIMEOUT, pabal_json, run_hub
from support.processes import wait_for_children, wait_for_lines
from support.strict_client import StrictClient, stream_blocks
from support.wait import wait_until
from support.webhook import WEBHOOK_HEADERS, WEBHOOK_SECRET

pytestmark = pytest.mark.anyio

USERS = ("mina", "joon")
PLUGINS = (HERMES, OPENCLAW)
"""Each has a user of its own, with the same name."""


@dataclass
class Load:
    """What the clients sent and received."""

    port: int
    token: str = ""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    sent: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict[str, set[str]](set))
    received: dict[str, list[str]] = field(default_factory=lambda: {user: [] for user in USERS})
    published: set[str] = field(default_factory=set[str])
    consumed: set[str] = field(default_factory=set[str])
    silent: set[str] = field(default_factory=set[str])
    """The senders that have stopped."""
    opened_streams: int = 0
    hints: int = 0

    async def pair(self, user: str) -> str:
        """Pair a session with the user; returns its token."""
        client = StrictClient(self.port)
        _, session = await client.request("POST", "/v1/sessions/create", {})
        pairing = message(user, f"/pair {session['pairingCode']}")
        await client.request("POST", "/kakao/webhook", pairing, **WEBHOOK_HEADERS)
        client.close()
        return session["sessionToken"]

    async def chat(self, user: str) -> None:
        with closing(StrictClient(self.port, WEBHOOK_HEADERS)) as client:
            for number in count():
                if self.stopping.is_set():
                    break
                status, body = await client.request("POST", "/kakao/webhook", message(user, f"{user} {number}"))
                assert (status, body["version"]) == (200, "2.0")
                self.sent[user].add(f"{user} {number}")
        self.silent.add(user)

    def has_received_all(self, user: str) -> bool:
        return user in self.silent and self.sent[user] <= {*self.received[user]}

    async def listen(self, user: str, token: str) -> None:
        """Receive the user's messages, and reconnect after a clean end without a delay, as OpenClaw does."""
        headers, last_id = {"authorization": f"Bearer {token}"}, "0"
        while not self.has_received_all(user):
            self.opened_streams += 1
            stream = stream_blocks(self.port, "/v1/events", headers | {"last-event-id": last_id})
            async with aclosing(stream) as blocks:
                async for block in blocks:
                    last_id = block.get("id", last_id)
                    self.hints += "retry" in block
                    if block.get("event") == "message":
                        await self.receive(user, headers, json.loads(block["data"]))
                    if self.has_received_all(user):
                        return

    async def receive(self, user: str, headers: dict[str, str], data: dict[str, Any]) -> None:
        self.received[user].append(data["normalized"]["text"])
        with closing(StrictClient(self.port, headers)) as client:
            status, _ = await client.request("POST", "/v1/messages/ack", {"messageIds": [data["id"]]})
        assert status == 200

    async def run_plugin(self, wire: PluginWire, token: str) -> None:
        """Let a plugin answer its user until nothing is left. Each message starts one turn."""
        user, address = wire.name, f"http://127.0.0.1:{self.port}"
        async with running_plugin(wire, address, token=token) as plugin:
            await wait_until(lambda: user in self.silent and self.sent[user] <= {*plugin.replies}, PROCESS_TIMEOUT)
            assert sorted(plugin.turns) == sorted(self.sent[user])
            assert {*plugin.opened} == {200}
            assert {*plugin.delays} <= {wire.clean_close_delay}, "a stream broke instead of ending cleanly"

    async def publish(self) -> None:
        with closing(StrictClient(self.port, {"authorization": f"Bearer {self.token}"})) as client:
            while not self.stopping.is_set():
                event = {"event_type": "order.paid", "target_service": "shop", "payload": {}}
                status, body = await client.request("POST", "/v1/queue/events", event)
                assert status == 202, body
                self.published.add(body["id"])
        self.silent.add("publisher")

    async def consume(self) -> None:
        with closing(StrictClient(self.port, {"authorization": f"Bearer {self.token}"})) as client:
            while not ("publisher" in self.silent and self.published <= self.consumed):
                status, body = await client.request("POST", "/v1/queue/claim", {"limit": 10, "wait": 2000})
                assert status == 200, body
                if receipts := [event["receipt"] for event in body["events"]]:
                    status, _ = await client.request("POST", "/v1/queue/ack", {"receipts": receipts})
                    assert status == 200
                self.consumed |= {event["id"] for event in body["events"]}


def message(user: str, text: str) -> dict[str, Any]:
    return {"bot": {"id": "bot"}, "userRequest": {"user": {"id": user}, "utterance": text}}


async def under_load(load: Load, action: Callable[[], Awaitable[None]]) -> None:
    """Run the action while all clients work; an error of one fails the test."""
    tokens = {user: await load.pair(user) for user in USERS}
    async with asyncio.timeout(PROCESS_TIMEOUT), asyncio.TaskGroup() as clients:
        for user, token in tokens.items():
            clients.create_task(load.chat(user))
            clients.create_task(load.listen(user, token))
        for wire in PLUGINS:
            token = await load.pair(wire.name)
            clients.create_task(load.run_plugin(wire, token))
            clients.create_task(load.chat(wire.name))
        for work in (load.publish, load.consume):
            clients.create_task(work())
        await wait_until(lambda: all(load.received.values()) and len(load.consumed) > 5, PROCESS_TIMEOUT)
        await action()
        load.stopping.set()


async def test_a_rolling_restart_fails_no_request_and_loses_nothing(folder: Path, database_urls: DatabaseUrls) -> None:
    variables: dict[str, Any] = {
        "PABAL_DATABASE_URL": database_urls.direct or database_urls.main,
        "PABAL_ADMIN_PASSWORD": "correct horse",
        "PABAL_WEBHOOK_SECRET": WEBHOOK_SECRET.get_secret_value(),
        "PABAL_WEBHOOK_PER_CONVERSATION": "0",
        "PABAL_WEBHOOK_PER_CHANNEL": "0",
    }
    pabal_json("service", "add", "shop", "--permission", "write", folder=folder, **variables)
    tokens = pabal_json("token", "issue", "shop", folder=folder, **variables)
    with run_hub(folder, "serve", **variables, PABAL_PROCESSES="2") as hub:
        await wait_for_children(hub, 2)
        load = Load(int(hub.address.rpartition(":")[2]), tokens["access_token"])

        async def restart() -> None:
            hub.process.send_signal(signal.SIGHUP)
            await wait_for_lines(hub, "rolling restart done", 1)

        await under_load(load, restart)

    assert load.opened_streams > len(USERS), "no stream was on a process that was replaced"
    assert load.hints >= load.opened_streams - len(USERS)
    for user in USERS:
        assert sorted(load.received[user]) == sorted(load.sent[user])
    assert load.published <= load.consumed
