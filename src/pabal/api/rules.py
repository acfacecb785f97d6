"""Rules: which events make which notifications."""

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from pabal.api.door import Answer, Body, Door
from pabal.api.notifications import RecipientType
from pabal.api.page import PageQuery, cursor_of, place_of
from pabal.api.visit import Visit
from pabal.core.errors import Conflict, NotFound
from pabal.notifications import rules
from pabal.notifications.rules import Draft, Rule
from pabal.tokens.permission import Permission
from pabal.tokens.verify import Caller
from pabal.wiring import Hub

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Pattern = Annotated[str, msgspec.Meta(pattern=r"^(\*|[a-z0-9_]+)(\.(\*|[a-z0-9_]+))*$", max_length=128)]
TemplateKey = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Path = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=255)]
Paths = Annotated[list[Path], msgspec.Meta(min_length=1, max_length=20)]
Channels = Annotated[list[RecipientType], msgspec.Meta(min_length=1, max_length=3)]
Seconds = Annotated[int, msgspec.Meta(ge=1, le=31_536_000)]


class RuleDraft(Body, frozen=True, kw_only=True):
    """Of events of this pattern (* is one part, or at the end the rest) this template is made, for these recipients.

    `recipients` are paths into the payload, such as `user.discord_id`; of a list each is meant. `variables` says where
    the template's variables are; one that is not named is taken by its own name.
    """

    name: Name
    event_pattern: Pattern
    template_key: TemplateKey
    recipients: Paths
    channels: Channels
    variables: dict[str, Path] = msgspec.field(default_factory=dict[str, Path])
    guild_path: Path | None = None
    incident_path: Path | None = None
    expires_after_seconds: Seconds | None = None
    is_active: bool = True


class RuleChange(Body, frozen=True, kw_only=True):
    """What shall be otherwise; what is left out stays."""

    name: Name | UnsetType = UNSET
    event_pattern: Pattern | UnsetType = UNSET
    template_key: TemplateKey | UnsetType = UNSET
    recipients: Paths | UnsetType = UNSET
    channels: Channels | UnsetType = UNSET
    variables: dict[str, Path] | UnsetType = UNSET
    guild_path: Path | UnsetType | None = UNSET
    incident_path: Path | UnsetType | None = UNSET
    expires_after_seconds: Seconds | UnsetType | None = UNSET
    is_active: bool | UnsetType = UNSET


class RuleView(Answer, frozen=True):
    """A rule as it stands."""

    id: UUID
    name: str
    event_pattern: str
    template_key: str
    recipients: list[str]
    channels: list[RecipientType]
    variables: dict[str, str]
    guild_path: str | None
    incident_path: str | None
    expires_after_seconds: int | None
    is_active: bool
    created_by: str
    created_at: datetime
    updated_at: datetime


class RulePage(Answer, frozen=True):
    items: list[RuleView]
    cursor: str | None


async def list_rules(hub: Hub, query: PageQuery) -> RulePage:
    """Every rule, the oldest first."""
    async with hub.autocommit() as tx:
        rows = await rules.every(tx, after=place_of(query.cursor), limit=query.limit)
    return RulePage([view_of(row) for row in rows], cursor_of(rows, query.limit))


async def add_rule(hub: Hub, visit: Visit, caller: Caller, body: RuleDraft) -> RuleView:
    """Add a rule, for what is published from now on."""
    async with hub.transaction() as tx:
        return view_of(await rules.add(tx, hub.catalogue, Draft(**said(body)), visit.by(caller.service)))


async def show_rule(hub: Hub, id: UUID) -> RuleView:  # noqa: A002 as the path names it
    """Show a rule."""
    async with hub.autocommit() as tx:
        return view_of(await rules.find(tx, id))


async def change_rule(hub: Hub, visit: Visit, caller: Caller, id: UUID, body: RuleChange) -> RuleView:  # noqa: A002 as above
    """Change a rule, from the next event on."""
    async with hub.transaction() as tx:
        return view_of(await rules.change(tx, hub.catalogue, id, said(body), visit.by(caller.service)))


async def remove_rule(hub: Hub, visit: Visit, caller: Caller, id: UUID) -> None:  # noqa: A002 as above
    """Forget a rule. What it asked for already is sent."""
    async with hub.transaction() as tx:
        await rules.remove(tx, id, visit.by(caller.service))


def said(body: RuleDraft | RuleChange) -> dict[str, Any]:
    """What a body names, in the rule's own words."""
    named = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}
    if "expires_after_seconds" in named:
        seconds = named.pop("expires_after_seconds")
        named["expires_after"] = None if seconds is None else timedelta(seconds=seconds)
    return named


def view_of(rule: Rule) -> RuleView:
    seen = {name: getattr(rule, name) for name in RuleView.__struct_fields__ if name != "expires_after_seconds"}
    lives = rule.expires_after
    return RuleView(**seen, expires_after_seconds=None if lives is None else round(lives.total_seconds()))


ONE = "/v1/notification-rules/{id}"
DOORS = tuple(
    Door(method, path, handler, needs=Permission.ADMIN, answers=answers, may_raise=may_raise, tag="notifications")
    for method, path, handler, answers, may_raise in (
        ("GET", "/v1/notification-rules", list_rules, 200, ()),
        ("POST", "/v1/notification-rules", add_rule, 201, (Conflict,)),
        ("GET", ONE, show_rule, 200, (NotFound,)),
        ("PATCH", ONE, change_rule, 200, (NotFound, Conflict)),
        ("DELETE", ONE, remove_rule, 204, (NotFound,)),
    )
)
