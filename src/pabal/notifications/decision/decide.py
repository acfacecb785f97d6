"""Decide whether a notification is sent: by its kind, its channel, the recipient's preferences and the hour in Korea.

Pure functions of rows and clock. They run when a notification is requested and again when it is sent. A test compares
them with the decision table in docs/notifications.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import StrEnum

from pabal.notifications.states import Priority

KOREA_TIMEZONE = timezone(timedelta(hours=9))  # no daylight saving time
DAY_START_HOUR, DAY_END_HOUR = 8, 21
"""Marketing outside these hours requires night consent."""


class NotificationChannel(StrEnum):
    """Where a notification goes: the column `recipient_type`."""

    USER_DM = "user_dm"
    GUILD_AUDIT_CHANNEL = "guild_audit_channel"
    DASHBOARD_TOAST = "dashboard_toast"


class NotificationCategory(StrEnum):
    """What a notification is about. Each category but `system` has a preference that turns it off."""

    PAYMENT = "payment"
    RECOVERY = "recovery"
    ANTINUKE = "antinuke"
    MARKETING = "marketing"
    SYSTEM = "system"


class Criticality(StrEnum):
    """How important it is. An emergency overrides preferences."""

    NORMAL = "normal"
    IMPORTANT = "important"
    EMERGENCY = "emergency"

    @property
    def priority(self) -> Priority:
        """The order within the lane: the lowest is sent first."""
        return PRIORITIES[self]


PRIORITIES: Mapping[Criticality, Priority] = {
    Criticality.EMERGENCY: 1,
    Criticality.IMPORTANT: 3,
    Criticality.NORMAL: 5,
}


class SuppressReason(StrEnum):
    """Why a notification was suppressed: the column `reason`."""

    DM_DISABLED = "dm_disabled"
    CATEGORY_OFF = "category_off"
    DUPLICATE = "duplicate"
    ADDRESS_UNHEALTHY = "address_unhealthy"
    EXPIRED = "expired"
    STORM = "storm"
    CANCELLED = "cancelled"
    NO_TRANSPORT = "no_transport"


class PreferencesOrigin(StrEnum):
    """Whose preferences decide: those of the account itself, of the linked user, or also of a user a service names."""

    ACCOUNT = "account"
    USER = "user"
    SERVICE_LINK = "service_link"


class DecisionStep(StrEnum):
    """One step of a decision: an element of the column `decision`."""

    USER_PREFERENCES = "user_preferences"
    SERVICE_LINK_PREFERENCES = "service_link_preferences"
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
    RATE_LIMIT_WAITS = "rate_limit_waits"
    AT_SEND = "at_send"
    FIRST_OF_INCIDENT = "first_of_incident"
    SAME_INCIDENT = "same_incident"
    TOO_MANY_EMERGENCIES = "too_many_emergencies"
    RAISED = "raised"
    NO_TRANSPORT = "no_transport"


ORIGIN_STEPS: Mapping[PreferencesOrigin, DecisionStep] = {
    PreferencesOrigin.USER: DecisionStep.USER_PREFERENCES,
    PreferencesOrigin.SERVICE_LINK: DecisionStep.SERVICE_LINK_PREFERENCES,
}
"""The step that says whose preferences decided. Without one, it was the account itself."""


@dataclass(frozen=True, slots=True)
class RecipientProfile:
    """A recipient's preferences, and the channels where their address is unhealthy."""

    dm_enabled: bool = True
    payment_notifications: bool = True
    recovery_notifications: bool = True
    antinuke_notifications: bool = True
    marketing_notifications: bool = True
    night_consent_at: datetime | None = None
    unhealthy: frozenset[NotificationChannel] = frozenset()
    decided_by: PreferencesOrigin = PreferencesOrigin.ACCOUNT

    def allows(self, category: NotificationCategory) -> bool:
        return category is NotificationCategory.SYSTEM or bool(getattr(self, f"{category}_notifications"))


DEFAULT_PROFILE = RecipientProfile()

DecisionSteps = tuple[DecisionStep, ...]


@dataclass(frozen=True, slots=True)
class SendNow:
    """Send it. `overrides` are the reasons against it that an emergency overrides."""

    steps: DecisionSteps
    overrides: tuple[SuppressReason, ...] = ()


@dataclass(frozen=True, slots=True)
class Suppress:
    """Never send it."""

    reason: SuppressReason
    steps: DecisionSteps


@dataclass(frozen=True, slots=True)
class SendLater:
    """Send it, but not before `until`."""

    until: datetime
    steps: DecisionSteps


DeliveryDecision = SendNow | Suppress | SendLater


@dataclass(slots=True)
class DecisionChain:
    """The steps of a decision, and the reasons against sending."""

    steps: list[DecisionStep] = field(default_factory=list[DecisionStep])
    objections: list[SuppressReason] = field(default_factory=list[SuppressReason])

    def add_check(
        self, *, passed: bool, passed_step: DecisionStep, failed_step: DecisionStep, reason: SuppressReason
    ) -> None:
        self.steps.append(passed_step if passed else failed_step)
        if not passed:
            self.objections.append(reason)


def decide_delivery(
    channel: NotificationChannel,
    category: NotificationCategory,
    criticality: Criticality,
    profile: RecipientProfile,
    *,
    now: datetime,
) -> DeliveryDecision:
    """Decide whether to send, and record every step."""
    personal = channel is not NotificationChannel.GUILD_AUDIT_CHANNEL
    urgent = is_urgent(category, criticality)
    chain = check_recipient(channel, category, profile)
    if urgent:
        return SendNow((DecisionStep.EMERGENCY, *chain.steps), tuple(chain.objections))
    if chain.objections:
        return Suppress(chain.objections[0], tuple(chain.steps))
    if category is NotificationCategory.MARKETING and personal and is_night_in_korea(now):
        if profile.night_consent_at is None:
            return SendLater(next_korean_morning(now), (*chain.steps, DecisionStep.NIGHT_WAITS))
        return SendNow((*chain.steps, DecisionStep.NIGHT_CONSENT))
    if category is NotificationCategory.MARKETING and personal:
        return SendNow((*chain.steps, DecisionStep.BY_DAY))
    return SendNow(tuple(chain.steps))


def check_recipient(
    channel: NotificationChannel, category: NotificationCategory, profile: RecipientProfile
) -> DecisionChain:
    """Check the preferences and the address. The caller decides whether they matter."""
    chain = DecisionChain()
    if channel is NotificationChannel.GUILD_AUDIT_CHANNEL:
        chain.steps.append(DecisionStep.NO_PREFERENCES)
    elif profile.decided_by in ORIGIN_STEPS:
        chain.steps.append(ORIGIN_STEPS[profile.decided_by])
    if channel is NotificationChannel.USER_DM:
        chain.add_check(
            passed=profile.dm_enabled,
            passed_step=DecisionStep.DM_ENABLED,
            failed_step=DecisionStep.DM_DISABLED,
            reason=SuppressReason.DM_DISABLED,
        )
    if channel is not NotificationChannel.GUILD_AUDIT_CHANNEL:
        category_step = DecisionStep.NO_FLAG if category is NotificationCategory.SYSTEM else DecisionStep.CATEGORY_ON
        chain.add_check(
            passed=profile.allows(category),
            passed_step=category_step,
            failed_step=DecisionStep.CATEGORY_OFF,
            reason=SuppressReason.CATEGORY_OFF,
        )
    chain.add_check(
        passed=channel not in profile.unhealthy,
        passed_step=DecisionStep.ADDRESS_HEALTHY,
        failed_step=DecisionStep.ADDRESS_UNHEALTHY,
        reason=SuppressReason.ADDRESS_UNHEALTHY,
    )
    return chain


def is_urgent(category: NotificationCategory, criticality: Criticality) -> bool:
    """Whether it overrides preferences. Marketing never does."""
    return criticality is Criticality.EMERGENCY and category is not NotificationCategory.MARKETING


def is_night_in_korea(now: datetime) -> bool:
    return not DAY_START_HOUR <= now.astimezone(KOREA_TIMEZONE).hour < DAY_END_HOUR


def next_korean_morning(now: datetime) -> datetime:
    """The next 08:00 in Korea."""
    local = now.astimezone(KOREA_TIMEZONE)
    morning = local.replace(hour=DAY_START_HOUR, minute=0, second=0, microsecond=0)
    return morning if local < morning else morning + timedelta(days=1)
