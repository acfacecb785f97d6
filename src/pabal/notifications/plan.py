"""Whether a notice goes out: what it is, where it would go, what the person said, and the hour in Korea.

Pure: the rows and the clock come in. It is asked when a request is made and again when it is sent, and the table in
docs/notifications.md is what a test holds it against.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import StrEnum

KOREA = timezone(timedelta(hours=9))  # no summer time since 1988
MORNING, EVENING = 8, 21
"""Between these hours marketing may be sent without consent for the night."""


class Channel(StrEnum):
    """Where a notice goes: a request's recipient_type."""

    USER_DM = "user_dm"
    GUILD_AUDIT_CHANNEL = "guild_audit_channel"
    DASHBOARD_TOAST = "dashboard_toast"


class Category(StrEnum):
    """What a notice is about, and so which preference rules it; `system` has none."""

    PAYMENT = "payment"
    RECOVERY = "recovery"
    ANTINUKE = "antinuke"
    MARKETING = "marketing"
    SYSTEM = "system"


class Criticality(StrEnum):
    """How much it matters; an emergency passes the preferences."""

    NORMAL = "normal"
    IMPORTANT = "important"
    EMERGENCY = "emergency"

    @property
    def priority(self) -> int:
        """What the lane orders by: a lower one goes first."""
        return {"emergency": 1, "important": 3, "normal": 5}[self.value]


class Reason(StrEnum):
    """Why a request was suppressed, as its row says it."""

    DM_DISABLED = "dm_disabled"
    CATEGORY_OFF = "category_off"
    DUPLICATE = "duplicate"
    ADDRESS_UNHEALTHY = "address_unhealthy"
    EXPIRED = "expired"
    STORM = "storm"
    CANCELLED = "cancelled"


class Step(StrEnum):
    """One link of the chain of reasons that a request keeps as its decision."""

    EMERGENCY = "emergency"
    NO_PREFERENCES = "no_preferences"
    DM_ENABLED = "dm_enabled"
    DM_DISABLED = "dm_disabled"
    CATEGORY_ON = "category_on"
    CATEGORY_OFF = "category_off"
    NO_FLAG = "no_flag"
    ADDRESS_HEALTHY = "address_healthy"
    ADDRESS_UNHEALTHY = "address_unhealthy"
    BY_DAY = "by_day"
    NIGHT_CONSENT = "night_consent"
    NIGHT_WAITS = "night_waits"
    AT_SEND = "at_send"
    FIRST_OF_INCIDENT = "first_of_incident"
    SAME_INCIDENT = "same_incident"
    TOO_MANY_EMERGENCIES = "too_many_emergencies"
    RAISED = "raised"


@dataclass(frozen=True, slots=True)
class Flags:
    """What a person wants, as far as they said; the defaults are the seed's. `unhealthy` is where they refused us."""

    dm_enabled: bool = True
    payment_notifications: bool = True
    recovery_notifications: bool = True
    antinuke_notifications: bool = True
    marketing_notifications: bool = True
    night_consent_at: datetime | None = None
    unhealthy: frozenset[Channel] = frozenset()

    def wants(self, category: Category) -> bool:
        return category is Category.SYSTEM or bool(getattr(self, f"{category}_notifications"))


DEFAULTS = Flags()

Steps = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """It goes out. `overrides` is what the person or the address said against it, passed because it is an emergency."""

    steps: Steps
    overrides: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class Suppress:
    """It does not go out, now or later."""

    reason: Reason
    steps: Steps


@dataclass(frozen=True, slots=True)
class Later:
    """It goes out, but not before `until`."""

    until: datetime
    steps: Steps


Decision = Send | Suppress | Later


@dataclass(slots=True)
class Chain:
    """The reasons as they come, and the first that spoke against."""

    steps: list[Step] = field(default_factory=list[Step])
    against: list[Reason] = field(default_factory=list[Reason])

    def ask(self, *, good: bool, yes: Step, no: Step, reason: Reason) -> None:
        self.steps.append(yes if good else no)
        if not good:
            self.against.append(reason)


def decide(channel: Channel, category: Category, criticality: Criticality, flags: Flags, *, now: datetime) -> Decision:
    """Say whether it is sent, and every reason on the way."""
    personal = channel is not Channel.GUILD_AUDIT_CHANNEL
    urgent = is_urgent(category, criticality)
    chain = asked(channel, category, flags)
    if urgent:
        return Send((Step.EMERGENCY, *chain.steps), tuple(chain.against))
    if chain.against:
        return Suppress(chain.against[0], tuple(chain.steps))
    if category is Category.MARKETING and personal and is_night(now):
        if flags.night_consent_at is None:
            return Later(next_morning(now), (*chain.steps, Step.NIGHT_WAITS))
        return Send((*chain.steps, Step.NIGHT_CONSENT))
    if category is Category.MARKETING and personal:
        return Send((*chain.steps, Step.BY_DAY))
    return Send(tuple(chain.steps))


def asked(channel: Channel, category: Category, flags: Flags) -> Chain:
    """What the person and the address say, whoever listens to it."""
    chain = Chain()
    if channel is Channel.GUILD_AUDIT_CHANNEL:
        chain.steps.append(Step.NO_PREFERENCES)
    if channel is Channel.USER_DM:
        chain.ask(good=flags.dm_enabled, yes=Step.DM_ENABLED, no=Step.DM_DISABLED, reason=Reason.DM_DISABLED)
    if channel is not Channel.GUILD_AUDIT_CHANNEL:
        on = Step.NO_FLAG if category is Category.SYSTEM else Step.CATEGORY_ON
        chain.ask(good=flags.wants(category), yes=on, no=Step.CATEGORY_OFF, reason=Reason.CATEGORY_OFF)
    chain.ask(
        good=channel not in flags.unhealthy,
        yes=Step.ADDRESS_HEALTHY,
        no=Step.ADDRESS_UNHEALTHY,
        reason=Reason.ADDRESS_UNHEALTHY,
    )
    return chain


def is_urgent(category: Category, criticality: Criticality) -> bool:
    """Whether it passes preferences. Advertising never does, whatever its template calls itself."""
    return criticality is Criticality.EMERGENCY and category is not Category.MARKETING


def is_night(now: datetime) -> bool:
    return not MORNING <= now.astimezone(KOREA).hour < EVENING


def next_morning(now: datetime) -> datetime:
    """The next eight o'clock in Korea."""
    here = now.astimezone(KOREA)
    morning = here.replace(hour=MORNING, minute=0, second=0, microsecond=0)
    return morning if here < morning else morning + timedelta(days=1)
