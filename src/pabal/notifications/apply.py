"""Apply the rules to events: ask for what each event makes, in the transaction that settles it.

What a rule asked for of an event it never asks for again, however often the event comes: the keys say so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, Protocol
from uuid import UUID

from pabal.core.actor import HUB, Actor
from pabal.core.errors import PabalError
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications import rules
from pabal.notifications.catalogue import Catalogue
from pabal.notifications.paths import NOWHERE, At, Missing, found, only
from pabal.notifications.plan import Channel
from pabal.notifications.request import Draft, ask_each, known_guilds, wrong
from pabal.notifications.rules import Rule
from pabal.notifications.template import Kind, Template
from pabal.queue.outcome import DONE, Dead, Outcome, Retry

Q = beside(__file__)

RULES = Actor("rule")
OWN = "notification."
"""What events about notices begin with. Those of the hub make no notices: one would make the next."""
MOST = 10_000
"""Notices that one rule may make of one event."""
ENOUGH = 2000
"""Notices after which a transaction takes up no further event: nobody's few wait for somebody's many."""


class Happening(Protocol):
    """An event, as far as a rule looks at it."""

    @property
    def id(self) -> UUID: ...
    @property
    def event_type(self) -> str: ...
    @property
    def source_service(self) -> str: ...
    @property
    def payload(self) -> Any: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def correlation_id(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Root:
    """The event as it was published, of which this is the hub's delivery."""

    id: UUID
    event: UUID


@dataclass(slots=True)
class Yield:
    """What the rules make of one event: notices, and what stands in the way of others."""

    drafts: list[Draft]
    lacking: list[str]
    unknown: list[str]

    @property
    def outcome(self) -> Outcome:
        """The event is dead when a rule could not do its part; what other rules made of it is made."""
        if self.lacking:
            return Dead("; ".join(self.lacking), code="rule_unmet")
        if self.unknown:  # a process of another version may know it
            return Retry("; ".join(self.unknown), code="template_unknown")
        return DONE


async def apply(tx: Tx, events: Sequence[Happening], catalogue: Catalogue) -> list[Outcome]:
    """Ask for everything that the first of these events make, as many as are enough for one transaction.

    For each of those what becomes of it; the others are for the next transaction.
    """
    roots = {each.id: each.event for each in await tx.all(Root, Q.roots, ids=[event.id for event in events])}
    active = await rules.active(tx)
    made: list[Yield] = []
    for event in events:
        made.append(yield_of(active, catalogue, event, roots.get(event.id, event.id)))
        if sum(len(each.drafts) for each in made) >= ENOUGH:
            break
    drafts = await without_strange_guilds(tx, [draft for each in made for draft in each.drafts])
    results = iter([asked for some in portions(drafts) for asked in await ask_each(tx, some, RULES)])
    outcomes: list[Outcome] = []
    for each in made:
        failed = [error for error in (next(results) for _ in each.drafts) if isinstance(error, PabalError)]
        outcomes.append(Retry(str(failed[0]), code=failed[0].code) if failed else each.outcome)
    return outcomes


def portions(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """As many at once as a statement has time for: many rules may make very many of one event."""
    return (drafts[begin : begin + MOST] for begin in range(0, len(drafts), MOST))


async def without_strange_guilds(tx: Tx, drafts: Sequence[Draft]) -> list[Draft]:
    """A guild is kept for the record: one that is gone, or was never here, stops nobody's notice."""
    known = await known_guilds(tx, {draft.guild for draft in drafts if draft.guild is not None})
    return [replace(draft, guild=draft.guild if draft.guild in known else None) for draft in drafts]


def yield_of(active: Sequence[Rule], catalogue: Catalogue, event: Happening, root: UUID) -> Yield:
    made = Yield([], [], [])
    if event.source_service == HUB.name and event.event_type.startswith(OWN):
        return made
    for rule in active:
        if not rule.wants(event.event_type):
            continue
        if rule.template_key not in catalogue:
            made.unknown.append(f"rule {rule.name}: there is no template {rule.template_key} here")
            continue
        try:
            made.drafts += checked(drafts_of(rule, catalogue.get(rule.template_key), event, root))
        except Missing as error:
            made.lacking.append(f"rule {rule.name}: {error}")
    return made


def checked(made: Iterator[Draft]) -> list[Draft]:
    """All of them, or the reason why it is none; of too many no more are made than show it."""
    drafts = [*islice(made, MOST + 1)]
    if len(drafts) > MOST:
        raise Missing(f"the notices of one event are more than {MOST}")
    for draft in drafts:
        if mistakes := [*wrong(draft)]:
            raise Missing("; ".join(map(str, mistakes)))
    return drafts


def drafts_of(rule: Rule, template: Template, event: Happening, root: UUID) -> Iterator[Draft]:
    """One notice for each recipient and channel. In a list each recipient has what stands beside it."""
    payload = event.payload
    for path in rule.recipients:
        for value, at in found(payload, path):
            recipient = person(value, path)
            variables = {name: variable(rule, name, kind, payload, at) for name, kind in template.variables.items()}
            for channel in rule.channels:
                yield Draft(
                    channel=Channel(channel),
                    recipient=recipient,
                    template=template,
                    payload=variables,
                    guild=guild_of(rule, payload, at),
                    expires_at=None if rule.expires_after is None else event.created_at + rule.expires_after,
                    dedupe_key=f"{root}:{rule.id}:{channel}:{recipient}",
                    incident=None if rule.incident_path is None else str(only(payload, rule.incident_path, at)),
                    event=root,
                    rule=rule.id,
                    source=event.source_service,
                    correlation_id=event.correlation_id,
                )


def person(value: Any, path: str) -> str:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise Missing(f"{path} is no id")


def variable(rule: Rule, name: str, kind: Kind, payload: Any, at: At) -> Any:
    """What the payload says; an id that is a number in it may be a text in ours."""
    value = only(payload, rule.variables.get(name, name), at)
    return str(value) if kind is Kind.TEXT and Kind.INTEGER.fits(value) else value


def guild_of(rule: Rule, payload: Any, at: At = NOWHERE) -> UUID | None:
    if rule.guild_path is None:
        return None
    try:
        return UUID(str(only(payload, rule.guild_path, at)))
    except (Missing, ValueError):
        return None
