"""The sample data of the demo. Seeding a database that has it already changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.tx import Tx
from pabal.events.events import OPERATOR_ACCESS
from pabal.events.subscriptions import (
    SubscriptionDraft,
    SubscriptionPatch,
    add_subscription,
    list_subscriptions,
    pause_subscription,
    update_subscription,
)
from pabal.hub import Hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.notifications.people.tokens import issue_person_link
from pabal.notifications.preview import read_database_time
from pabal.notifications.requests import NotificationDraft, request_notifications
from pabal.notifications.rules.rules import RuleDraft, add_rule, list_rules
from pabal.notifications.templates.catalogue import register_templates
from pabal.tokens.services import add_service, find_service, rotate_service_secret


@dataclass(frozen=True, slots=True)
class DemoPerson:
    """A customer who gets notifications."""

    name: str
    discord_id: str
    email: str
    preferences: PreferencesUpdate


MINA = DemoPerson("민아", "830000000000000001", "mina@example.org", PreferencesUpdate(locale="ko"))
JUN = DemoPerson("Jun", "830000000000000002", "jun@example.org", PreferencesUpdate(locale="en", dm_enabled=False))
SORA = DemoPerson(
    "소라", "830000000000000003", "sora@example.org", PreferencesUpdate(locale="ko", payment_notifications=False)
)
HARU = DemoPerson("Haru", "830000000000000004", "haru@example.org", PreferencesUpdate(locale="en"))
"""Discord rejects direct messages to this user."""

DEMO_PEOPLE = (MINA, JUN, SORA, HARU)
OPERATORS_CHANNEL = "830000000000000009"


DEMO_ACTOR = Actor("demo")

DEMO_SERVICES: Mapping[str, str] = {
    "shop": "온라인 상점 · takes orders",
    "billing": "결제 · charges cards in a handler",
    "warehouse": "창고 · receives webhooks",
    "mailer": "메일 · receives webhooks, sometimes slowly",
    "analytics": "통계 · subscription is paused",
    "crm": "고객 관리 · no longer exists (410)",
    "guard": "Discord 서버 보안 · reports emergencies",
}
PUBLISHERS = ("shop", "guard")
SUBSCRIBED_TYPES: Mapping[str, tuple[str, ...]] = {
    "warehouse": ("order.paid", "stock.*"),
    "mailer": ("order.paid", "mail.*"),
    "analytics": ("order.*", "customer.*"),
    "crm": ("customer.*",),
}
PAUSED_SERVICE = "analytics"
DEMO_RULES = (
    RuleDraft(
        name="결제 알림",
        event_pattern="order.paid",
        template_key="payment.succeeded",
        recipients=["user.discord_id"],
        channels=[NotificationChannel.USER_DM, NotificationChannel.DASHBOARD_TOAST],
        expires_after=timedelta(hours=1),
    ),
    RuleDraft(
        name="Raid alarm",
        event_pattern="server.attacked",
        template_key="antinuke.triggered",
        recipients=["owner"],
        channels=[NotificationChannel.USER_DM, NotificationChannel.DASHBOARD_TOAST],
        incident_path="incident",
    ),
)
NEWS_PAYLOAD = {"headline": "봄맞이 할인", "story": "이번 주에는 녹차가 두 봉지에 한 봉지 값입니다."}
RESTORE_PAYLOAD = {"guild": "파발 가게", "restored": 42, "failed": 0}


@dataclass(frozen=True, slots=True)
class DemoSeed:
    """The secrets of the publishing services, and the token of one person's page."""

    secrets: Mapping[str, str] = field(repr=False)
    person_token: str = field(repr=False)


async def seed_demo(hub: Hub, receivers_url: str) -> DemoSeed:
    """Create the sample data. `receivers_url` is the base URL of the webhook receivers."""
    async with hub.transaction() as tx:
        await register_templates(tx, hub.templates)
        secrets = {name: await seed_service(tx, name, description) for name, description in DEMO_SERVICES.items()}
        for name, types in SUBSCRIBED_TYPES.items():
            await seed_subscription(tx, hub, name, types, f"{receivers_url}/{name}")
        for person in DEMO_PEOPLE:
            await update_preferences(tx, person.discord_id, person.preferences, DEMO_ACTOR)
        existing = {rule.name for rule in await list_rules(tx)}
        for rule in DEMO_RULES:
            if rule.name not in existing:
                await add_rule(tx, hub.templates, rule, DEMO_ACTOR)
        await seed_notifications(tx, hub)
    return DemoSeed({name: secrets[name] for name in PUBLISHERS}, await issue_demo_token(hub))


async def issue_demo_token(hub: Hub) -> str:
    """Issue a token for one customer, as a shop does with `POST /v1/people/{id}/token`."""
    async with hub.transaction() as tx:
        return (await issue_person_link(tx, MINA.discord_id, DEMO_ACTOR)).token


async def seed_service(tx: Tx, name: str, description: str) -> str:
    """Add a service, or rotate the secret of an existing one, and return the secret."""
    try:
        await find_service(tx, name)
    except NotFound:
        return (await add_service(tx, name, ["write"], DEMO_ACTOR, description=description))[1]
    return await rotate_service_secret(tx, name, DEMO_ACTOR, overlap=timedelta())


async def seed_subscription(tx: Tx, hub: Hub, name: str, types: tuple[str, ...], url: str) -> None:
    """Add a subscription, or point an existing one at the current URL."""
    for existing in await list_subscriptions(tx, OPERATOR_ACCESS, service=name):
        await update_subscription(tx, existing.id, OPERATOR_ACCESS, SubscriptionPatch(url=url), DEMO_ACTOR)
        return
    subscription, _ = await add_subscription(
        tx, hub.key_ring, SubscriptionDraft(name, types, url, timeout_seconds=5), DEMO_ACTOR
    )
    if name == PAUSED_SERVICE:
        await pause_subscription(tx, subscription.id, OPERATOR_ACCESS, DEMO_ACTOR)


async def seed_notifications(tx: Tx, hub: Hub) -> None:
    """Request a marketing notification, which waits for the morning if it is night in Korea, and one for tomorrow."""
    news = NotificationDraft(
        channel=NotificationChannel.DASHBOARD_TOAST,
        recipient=MINA.discord_id,
        template=hub.templates.get("marketing.news"),
        payload=NEWS_PAYLOAD,
        source="shop",
        dedupe_key="news",
    )
    later = NotificationDraft(
        channel=NotificationChannel.USER_DM,
        recipient=MINA.discord_id,
        template=hub.templates.get("restore.completed"),
        payload=RESTORE_PAYLOAD,
        scheduled_at=await read_database_time(tx) + timedelta(days=1),
        source="guard",
        dedupe_key="tomorrow",
    )
    await request_notifications(tx, [news, later], DEMO_ACTOR)
