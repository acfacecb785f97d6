"""`pabal trace`: one id's story."""

from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from cyclopts import Parameter

from pabal.cli import screen, wide
from pabal.cli.errand import errand
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.events.moments import Moment, Traced, lasting, standing
from pabal.events.story import Story, story
from pabal.wiring import Hub

STYLES = {"died": "red", "failed": "yellow", "completed": "green", "replayed": "cyan", "resolved": "cyan"}
ROOM = 300
"""Characters of an error a line has room for; --json has them all."""


def trace(
    id: Annotated[  # noqa: A002 as people call it
        str,
        Parameter(
            name="ID",
            help="An event, a delivery, a dead letter (the first 8 characters may do) or a correlation id.",
        ),
    ],
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Tell what became of an event: who published it, each attempt, deaths, replays, and how it stands."""

    async def look(hub: Hub) -> Story:
        async with hub.autocommit() as tx:
            return await story(tx, id)

    found = errand(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(account(found))
        return
    labels = labels_of(found)
    for event in found.events:
        heading(event, found)
    for event_id in gone(found):
        screen.say(
            f"event {event_id}: its row is gone; what follows is from its dead letters and the audit log", "bold"
        )
    screen.say("")
    before: datetime | None = None
    for moment in found.moments:
        line(moment, before, labels.get(moment.event_id, ""))
        before = moment.at


def heading(event: Traced, found: Story) -> None:
    kind = "delivery" if event.parent_id else "event"
    whom = event.target_service or "everybody"
    screen.say(f"{kind} {event.id}  {event.event_type}  {event.source_service} → {whom}", "bold")
    if event.is_broadcast:
        ends = Counter(each.status for each in found.events if each.parent_id == event.id)
        many = ", ".join(f"{count} {status}" for status, count in sorted(ends.items()))
        screen.say(f"  deliveries: {many}" if many else "  nobody had subscribed to it")
    else:
        screen.say(f"  {wide.one_line(standing(event, found.now))}")


def line(moment: Moment, before: datetime | None, label: str) -> None:
    gap = f"+{lasting(moment.at - before)}" if before else ""
    took = f" ({lasting(moment.took)})" if moment.took is not None else ""
    who = f"{label}  " if label else ""
    words = f"{wide.one_line(moment.says, ROOM)}{took}"
    screen.say(f"{wide.local(moment.at, 'milliseconds')}  {gap:<13} {who}{words}", STYLES.get(moment.kind, ""))


def labels_of(found: Story) -> dict[UUID, str]:
    """How each event of several is called in a line: by its receiver, or by its id where that is not enough."""
    ids = {moment.event_id: None for moment in found.moments}
    if len(ids) == 1:
        return {}
    whom = {event.id: f"→ {event.target_service or 'everybody'}" for event in found.events}
    often = Counter(whom.values())
    return {each: whom[each] if often.get(whom.get(each, "")) == 1 else str(each) for each in ids}


def gone(found: Story) -> list[UUID]:
    there = {event.id for event in found.events}
    return [each for each in dict.fromkeys(death.original_event_id for death in found.deaths) if each not in there]


def account(found: Story) -> dict[str, Any]:
    moments: list[dict[str, Any]] = []
    for place, moment in enumerate(found.moments):
        since = moment.at - found.moments[place - 1].at if place else None
        took = moment.took.total_seconds() if moment.took is not None else None
        after = since.total_seconds() if since is not None else None
        moments.append(asdict(moment) | {"took": took, "after": after})
    return {
        "about": found.about,
        "kind": found.kind,
        "events": [asdict(event) | {"standing": standing(event, found.now)} for event in found.events],
        "dead_letters": [asdict(death) for death in found.deaths],
        "moments": moments,
    }
