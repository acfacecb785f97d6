"""Rehearse: what would become of a notice if it were asked for now, and what it would say. Nothing is written."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pabal.core.errors import Invalid
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.plan import Decision
from pabal.notifications.preferences import flags_of
from pabal.notifications.preferences import get as preference_of
from pabal.notifications.render import Rendered, render
from pabal.notifications.request import Draft, planned, wrong
from pabal.notifications.template import Kind, Template

Q = beside(__file__)

MADE_UP: Mapping[Kind, Any] = {Kind.INTEGER: 12900, Kind.NUMBER: 9.5, Kind.BOOLEAN: True}


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What would be decided, and what would be shown, in which language."""

    decision: Decision
    rendered: Rendered
    locale: str


async def rehearse(tx: Tx, draft: Draft, locale: str) -> Rehearsal:
    """Decide and write a draft as its asking and its sending would; `locale` is the hub's own language."""
    if mistakes := [*wrong(draft)]:
        raise Invalid(*mistakes)
    flags = await flags_of(tx, [draft.recipient])
    now = await clock(tx)
    spoken = draft.locale or (await preference_of(tx, draft.recipient)).locale or locale
    rendered = render(draft.template, draft.channel, spoken, draft.said)
    return Rehearsal(planned(draft, flags[draft.recipient], now), rendered, spoken)


async def clock(tx: Tx) -> datetime:
    """The database's time: when a notice is due is said by it."""
    return await tx.value(Q.now)


def made_up(template: Template) -> dict[str, Any]:
    """A payload for whoever only wants to see a template: its texts are told the names of their variables."""
    return {name: MADE_UP.get(kind, name.replace("_", " ")) for name, kind in template.variables.items()}
