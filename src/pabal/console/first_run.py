"""The first page of a new hub: what to do in each lane, with the commands, and what has happened already."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Page
from pabal.console.pages import render_page
from pabal.db.tx import Tx
from pabal.events.first_steps import read_event_progress, were_events_published
from pabal.hub import Hub
from pabal.notifications.first_steps import read_notification_progress, were_notifications_requested
from pabal.operators.operators import OperatorSession
from pabal.relay.first_steps import is_relay_used, read_relay_progress
from pabal.tokens.services import has_active_services
from pabal.web.webhook_path import WEBHOOK_PATH

FIRST_RUN_PATH = "/console/start"
EXAMPLE_PERSON = "80351110224678912"
EXAMPLE_BOT = (
    'python -c \'from pabal_client import Bot; bot = Bot("{address}", token_file="bot.token");'
    ' bot.message(lambda message: "You said: " + message.text); bot.run()\''
)
"""Prints its pairing code and repeats what it is told. The client is installed with `pabal`."""


@dataclass(frozen=True, slots=True)
class FirstStep:
    """A step: the last part of its text id, what to type, and whether it has happened."""

    name: str
    commands: Sequence[str]
    is_done: bool


@dataclass(frozen=True, slots=True)
class FirstCard:
    """The steps to the first result in one lane. `lane` is also the last part of its text ids."""

    lane: str
    steps: Sequence[FirstStep]

    @property
    def is_done(self) -> bool:
        return all(step.is_done for step in self.steps)


async def first_run_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    async with hub.autocommit() as tx:
        cards = await read_first_cards(tx, hub.settings.issuer)
    return render_page(request, "first_run.html", session=session, cards=cards)


async def read_first_cards(tx: Tx, address: str) -> list[FirstCard]:
    """The three cards, for a hub with this address."""
    relay, event = await read_relay_progress(tx), await read_event_progress(tx)
    notification, has_service = await read_notification_progress(tx), await has_active_services(tx)
    payload = """'{"item": "Coffee", "amount": 5000, "currency": "KRW"}'"""
    post = f"curl -H 'Authorization: Bearer ACCESS_TOKEN' {address}/v1/queue"
    return [
        FirstCard(
            "relay",
            (
                FirstStep("webhook", ("pabal settings --show", f"{address}{WEBHOOK_PATH}"), relay.has_user),
                FirstStep("pair", (EXAMPLE_BOT.format(address=address), "/pair CODE"), relay.has_pairing),
                FirstStep("reply", ("hello",), relay.has_reply),
            ),
        ),
        FirstCard(
            "events",
            (
                FirstStep("service", ("pabal service add shop --permission write",), has_service),
                FirstStep(
                    "publish",
                    ("pabal event publish order.paid --source shop --target shop --payload '{\"order\": 7}'",),
                    event.has_event,
                ),
                FirstStep(
                    "receive",
                    (
                        f"curl -u shop:SECRET -d grant_type=client_credentials {address}/oauth/token",
                        f"""{post}/claim --json '{{"limit": 1, "lease_seconds": 600}}'""",
                        f"""{post}/ack --json '{{"receipts": ["RECEIPT"]}}'""",
                    ),
                    event.has_delivery,
                ),
            ),
        ),
        FirstCard(
            "notifications",
            (
                FirstStep(
                    "request",
                    (f"pabal notification send payment.succeeded --toast {EXAMPLE_PERSON} --payload {payload}",),
                    notification.has_request,
                ),
                FirstStep("sent", ("pabal notification list",), notification.has_sent),
            ),
        ),
    ]


async def is_unused(tx: Tx) -> bool:
    """Whether nothing but a service exists yet: then the overview points here. Reads a row of each lane at most."""
    return not (await is_relay_used(tx) or await were_events_published(tx) or await were_notifications_requested(tx))


PAGES = (Page(FIRST_RUN_PATH, first_run_page),)
