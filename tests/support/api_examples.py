"""A hub with everything that the examples of the API reference refer to, and what runs an example."""

import asyncio
import base64
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from string import Template
from typing import Any
from uuid import UUID

import httpx2

from pabal.hub import Hub
from pabal.operators.operators import Role, add_operator
from pabal.operators.password import hash_password
from relay.people import new_session
from support.failed_events import EventQueue
from support.fake_kakao import FakeKakao
from support.inbox import Inbox
from support.notification_api import REQUEST
from support.oauth_client import TESTER, RegisteredService, register_oauth_service
from support.receiver import Receiver
from support.relay_rows import Chat, Owner
from support.rules import add_test_rule
from support.subscriptions import subscribe
from support.webhook import WEBHOOK_SECRET

PERSON = "80351110224678912"
SHOP = "shop"
STANDARD_INPUT = "@-"
CURL_FUNCTION = """
curl() {
  printf '%s\\0' "$@"
  case "$*" in *@-*) input=; while IFS= read -r line; do input="$input$line"; done; printf '%s\\0' "$input" ;; esac
}
"""
"""Prints its arguments and its input instead of sending them."""
NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class ExampleHub:
    """A hub, and the parts of which examples are made. Each example gets new rows."""

    hub: Hub
    web: httpx2.AsyncClient
    shop: RegisteredService
    owner: Owner
    user: UUID
    event_queue: EventQueue
    inbox: Inbox
    kakao: FakeKakao
    receiver: Receiver
    tokens: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def chat(self) -> Chat:
        return Chat(self.inbox.db)

    async def variables(self, source: str, permission: str) -> dict[str, str]:
        """The environment of an example: a value for every variable that it names."""
        factories: dict[str, Callable[[], Awaitable[object]]] = {
            "PABAL_TOKEN": lambda: self.token(permission),
            "OLD_TOKEN": lambda: self.token(""),
            "EVENT_ID": lambda: self.event_queue.publish(source=SHOP, target=SHOP),
            "RECEIPT": self.claim_event,
            "SUBSCRIPTION_ID": self.add_subscription,
            "SERVICE_NAME": self.add_service,
            "OPERATOR_NAME": self.add_operator,
            "DEAD_LETTER_ID": self.add_dead_letter,
            "NOTIFICATION_ID": self.request_notification,
            "RULE_ID": self.add_rule,
            "TOAST_ID": lambda: self.inbox.insert_toast(PERSON),
            "PERSON_TOKEN": lambda: self.inbox.token(PERSON),
            "PERSON_ID": self.add_person,
            "SESSION_TOKEN": self.add_session,
            "MESSAGE_ID": self.add_message,
            "CONVERSATION_KEY": lambda: self.add_conversation("PAIRED"),
            "BLOCKED_CONVERSATION_KEY": lambda: self.add_conversation("BLOCKED"),
            "PENDING_CONVERSATION_KEY": lambda: self.add_conversation("PENDING"),
        }
        names = {*Template(source).get_identifiers()} | {name for name in factories if f'["{name}"]' in source}
        names |= {name for name in factories if f"['{name}']" in source}
        made = {name: str(await factories[name]()) for name in sorted(names & factories.keys())}
        return made | {
            "PABAL_URL": str(self.web.base_url).rstrip("/"),
            "PABAL_SERVICE": self.shop.name,
            "PABAL_SECRET": self.shop.secret,
            "RELAY_TOKEN": self.owner.token,
            "WEBHOOK_SECRET": WEBHOOK_SECRET.get_secret_value(),
            "RECEIVER_URL": self.receiver.url,
            "USER_ID": str(self.user),
        }

    async def token(self, permission: str) -> str:
        """A token with only this permission."""
        form = {"scope": permission} if permission else {}
        if not permission:
            return (await self.shop.tokens(**form))["access_token"]
        if permission not in self.tokens:
            self.tokens[permission] = (await self.shop.tokens(**form))["access_token"]
        return self.tokens[permission]

    async def claim_event(self) -> str:
        await self.event_queue.publish(source=SHOP, target=SHOP)
        header = {"authorization": f"Bearer {await self.token('events:consume')}"}
        claimed = await self.web.post("/v1/queue/claim", headers=header, json={"limit": 1})
        return claimed.json()["events"][0]["receipt"]

    async def add_subscription(self) -> UUID:
        subscription, _ = await subscribe(self.hub, SHOP, f"order.number_{next(NUMBERS)}", url=self.receiver.url)
        return subscription.id

    async def add_service(self) -> str:
        return (await register_oauth_service(self.hub, self.web, f"service_{next(NUMBERS)}", "read")).name

    async def add_operator(self) -> str:
        async with self.hub.transaction() as tx:
            return (
                await add_operator(
                    tx, f"operator{next(NUMBERS)}", await hash_password("correct horse"), Role.VIEWER, TESTER
                )
            ).name

    async def add_dead_letter(self) -> UUID:
        event = await self.event_queue.publish(source=SHOP, target=SHOP)
        return await self.event_queue.fail(event, service=SHOP)

    async def request_notification(self) -> str:
        header = {"authorization": f"Bearer {await self.token('notifications:send')}"}
        body = REQUEST | {"recipient_type": "dashboard_toast", "recipient_id": PERSON}
        return (await self.web.post("/v1/notifications", headers=header, json=body)).json()["id"]

    async def add_rule(self) -> UUID:
        return (await add_test_rule(self.hub, name=f"rule {next(NUMBERS)}")).id

    async def add_person(self) -> str:
        """A person with a notification and a link, which some examples remove."""
        await self.request_notification()
        header = {"authorization": f"Bearer {await self.token('people:write')}"}
        linked = await self.web.put(f"/v1/people/{PERSON}/user", headers=header, json={"user_id": str(self.user)})
        assert linked.status_code == 200, linked.text
        return PERSON

    async def add_session(self) -> str:
        return (await new_session(self.hub)).token

    async def add_conversation(self, state: str) -> str:
        key = await self.chat.conversation(self.owner, f"user-{next(NUMBERS)}")
        await self.inbox.db.execute(
            "update conversation_mappings set state = $2, blocked_by = case when $2 = 'BLOCKED' then 'owner' end "
            "where conversation_key = $1",
            key,
            state,
        )
        return key

    async def add_message(self) -> UUID:
        """A message that the bot has fetched."""
        key, url = await self.add_conversation("PAIRED"), self.kakao.url(f"callback-{next(NUMBERS)}")
        message = await self.chat.message(self.owner, key, url)
        fetched = await self.web.get("/v1/messages", params={"limit": 100}, headers=self.owner.header)
        assert str(message) in {item["id"] for item in fetched.json()["messages"]}
        return message


async def run_curl(web: httpx2.AsyncClient, source: str, variables: Mapping[str, str]) -> int:
    """Send what curl would send; returns the status. Of a stream, only the first part is read."""
    async with web.stream(**await parse_curl(source, variables)) as response:
        async for _ in response.aiter_bytes():
            break
        return response.status_code


async def parse_curl(source: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of a request like the one that curl would send."""
    method, url, headers, data = "GET", "", dict[str, str](), list[str]()
    arguments = iter(await curl_arguments(source, variables))
    for word in arguments:
        match word:
            case "-N":
                pass
            case "-X":
                method = next(arguments)
            case "-u":
                credentials = base64.b64encode(next(arguments).encode()).decode()
                headers["Authorization"] = f"Basic {credentials}"
            case "-H":
                name, _, value = next(arguments).partition(": ")
                headers[name] = value
            case "-d":
                data.append(next(arguments))
            case "--json":
                data.append(next(arguments))
                headers |= {"Content-Type": "application/json", "Accept": "application/json"}
            case _:
                assert word.startswith("http"), word
                url = word
    if data:
        method = "POST" if method == "GET" else method
        headers = {"Content-Type": "application/x-www-form-urlencoded"} | headers
    return {"method": method, "url": url, "headers": headers, "content": "&".join(data) or None}


async def curl_arguments(source: str, variables: Mapping[str, str]) -> list[str]:
    """The arguments that a shell passes to curl, with its input in place of `@-`."""
    shell = await asyncio.create_subprocess_exec("sh", "-euc", CURL_FUNCTION + source, stdout=PIPE, env={**variables})
    output, _ = await shell.communicate()
    assert shell.returncode == 0, source
    words = output.decode().split("\0")[:-1]
    if STANDARD_INPUT not in words:
        return words
    *words, document = words
    return [document if word == STANDARD_INPUT else word for word in words]


async def run_python(source: str) -> int | None:
    """Run the code in a thread; returns the status of its response, or None if it has none of its own."""
    namespace: dict[str, Any] = {}
    await asyncio.to_thread(exec, compile(source, "example", "exec"), namespace)
    response = namespace.get("response")
    return response.status_code if isinstance(response, httpx2.Response) else None
