"""Props: what is on the stage before anybody speaks. A kept stage that has them already keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.tx import Tx
from pabal.demo.people import EVERYBODY, MINA
from pabal.events import subscriptions
from pabal.events.read import Reader
from pabal.events.subscriptions import Change
from pabal.events.subscriptions import Draft as Wanted
from pabal.notifications import people, preferences, rules
from pabal.notifications.catalogue import register
from pabal.notifications.plan import Channel
from pabal.notifications.rehearse import clock
from pabal.notifications.request import Draft, ask
from pabal.notifications.rules import Draft as Rule
from pabal.tokens import services
from pabal.wiring import Hub

DEMO = Actor("demo")
OPERATOR = Reader("hub", all=True)

SERVICES: Mapping[str, str] = {
    "shop": "주문을 받는 가게 · takes orders",
    "billing": "결제 · charges cards, in a handler",
    "warehouse": "창고 · takes webhooks",
    "mailer": "메일 · takes webhooks, in its own time",
    "analytics": "통계 · its subscription is paused",
    "crm": "고객 관리 · has moved away",
    "guard": "Discord 서버 지킴이 · sounds emergencies",
}
SPEAKING = ("shop", "guard")
RECEIVING: Mapping[str, tuple[str, ...]] = {
    "warehouse": ("order.paid", "stock.*"),
    "mailer": ("order.paid", "mail.*"),
    "analytics": ("order.*", "customer.*"),
    "crm": ("customer.*",),
}
PAUSED = "analytics"
RULES = (
    Rule(
        name="결제 알림",
        event_pattern="order.paid",
        template_key="payment.succeeded",
        recipients=["user.discord_id"],
        channels=[Channel.USER_DM, Channel.DASHBOARD_TOAST],
        expires_after=timedelta(hours=1),
    ),
    Rule(
        name="Raid alarm",
        event_pattern="server.attacked",
        template_key="antinuke.triggered",
        recipients=["owner"],
        channels=[Channel.USER_DM, Channel.DASHBOARD_TOAST],
        incident_path="incident",
    ),
)
NEWS = {"headline": "봄맞이 할인", "story": "이번 주에는 녹차가 두 봉지에 한 봉지 값입니다."}
TOMORROW = {"guild": "파발 가게", "restored": 42, "failed": 0}


@dataclass(frozen=True, slots=True)
class Props:
    """What the players need: the secrets of those who speak, and the link to one person's page."""

    secrets: Mapping[str, str] = field(repr=False)
    link: str = field(repr=False)


async def set_up(hub: Hub, receivers: str) -> Props:
    """Put everything in its place. `receivers` is where webhooks go."""
    async with hub.transaction() as tx:
        await register(tx, hub.catalogue)
        secrets = {name: await service(tx, name, about) for name, about in SERVICES.items()}
        for name, types in RECEIVING.items():
            await subscription(tx, hub, name, types, f"{receivers}/{name}")
        for each in EVERYBODY:
            await preferences.put(tx, each.discord_id, each.wish, DEMO)
        known = {rule.name for rule in await rules.every(tx)}
        for rule in RULES:
            if rule.name not in known:
                await rules.add(tx, hub.catalogue, rule, DEMO)
        await notices(tx, hub)
        link = await people.issue(tx, MINA.discord_id, DEMO)
    return Props({name: secrets[name] for name in SPEAKING}, link.token)


async def service(tx: Tx, name: str, about: str) -> str:
    """A service and a secret for it: of one that was here before, a new one."""
    try:
        await services.find(tx, name)
    except NotFound:
        return (await services.add(tx, name, ["write"], DEMO, description=about))[1]
    return await services.rotate_secret(tx, name, DEMO, overlap=timedelta())


async def subscription(tx: Tx, hub: Hub, name: str, types: tuple[str, ...], url: str) -> None:
    """A subscription to that address; one from before is sent to the address of today."""
    for old in await subscriptions.every(tx, OPERATOR, of=name):
        await subscriptions.change(tx, old.id, OPERATOR, Change(url=url), DEMO)
        return
    made, _ = await subscriptions.add(tx, hub.keys, Wanted(name, types, url, timeout_seconds=5), DEMO)
    if name == PAUSED:
        await subscriptions.pause(tx, made.id, OPERATOR, DEMO)


async def notices(tx: Tx, hub: Hub) -> None:
    """Advertising, which waits for the morning if it is night in Korea, and a notice that is planned for tomorrow."""
    news = Draft(
        channel=Channel.DASHBOARD_TOAST,
        recipient=MINA.discord_id,
        template=hub.catalogue.get("marketing.news"),
        payload=NEWS,
        source="shop",
        dedupe_key="news",
    )
    later = Draft(
        channel=Channel.USER_DM,
        recipient=MINA.discord_id,
        template=hub.catalogue.get("restore.completed"),
        payload=TOMORROW,
        scheduled_at=await clock(tx) + timedelta(days=1),
        source="guard",
        dedupe_key="tomorrow",
    )
    await ask(tx, [news, later], DEMO)
