"""`pabal dead list|groups|show|replay|resolve`."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import cyclopts
from cyclopts import Parameter
from rich.text import Text

from pabal.api.page import cursor_of, place_of
from pabal.cli import lists, screen, wide
from pabal.cli.errand import actor, errand
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, Limit
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.db.tx import Tx
from pabal.events import letters
from pabal.events.letters import Filter, Group, Letter, State, WholeLetter
from pabal.events.replay import Tally, count, replay_all, replay_one
from pabal.settings import duration
from pabal.wiring import Hub

app = cyclopts.App(name="dead", help="Events that failed for good: look at them, replay them, resolve them.")

COLUMNS = ("id", "failed", "event type", "from", "to", "state", "error")
SHOWN = 60
"""Characters of an error a list has room for."""


def when(_kind: Any, tokens: Sequence[cyclopts.Token]) -> timedelta | datetime:
    """Read how long ago, as the settings write it, or a moment; without an offset that is local time."""
    written = tokens[0].value
    try:
        return duration(written)
    except ValueError:
        try:
            return datetime.fromisoformat(written).astimezone()
        except ValueError:
            raise ValueError("is how long ago (90s, 15m, 2h, 7d) or a moment (2026-01-31T18:00)") from None


When = Annotated[timedelta | datetime | None, Parameter(converter=when, n_tokens=1, accepts_keys=False)]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Which:
    """Which dead letters."""

    type: Annotated[str | None, Parameter(help="Of this event type; * stands for anything.")] = None
    source: Annotated[str | None, Parameter(help="Published by this service.")] = None
    target: Annotated[str | None, Parameter(help="For this service.")] = None
    signature: Annotated[str | None, Parameter(help="Of this cause, as `pabal dead groups` shows it.")] = None
    error_code: Annotated[str | None, Parameter(help="With this error code.")] = None
    since: Annotated[When, Parameter(help="Failed since: 2h (ago), or a moment.")] = None
    until: Annotated[When, Parameter(help="Failed before: 2h (ago), or a moment.")] = None

    async def filter(self, tx: Tx) -> Filter:
        """Times are the database's: it is what they are held against."""
        now = await letters.clock(tx)
        since, until = (now - each if isinstance(each, timedelta) else each for each in (self.since, self.until))
        return Filter(self.type, self.source, self.target, self.signature, self.error_code, since, until)


EVERYTHING = Which()

Ids = Annotated[UUID, Parameter(name="ID", help="The dead letter, as `pabal dead list` shows it.")]
Chosen = Annotated[State, Parameter(help="Those that nobody has seen to, those that are, or all.")]
Answers = list[tuple[UUID, UUID | None, str | None]]
"""For each dead letter: the event that lives again, or why not."""


@app.command(name="list")
def listing(
    *,
    which: Which = EVERYTHING,
    state: Chosen = "unresolved",
    limit: Limit = 50,
    cursor: Cursor = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show dead letters, the newest first."""
    before = place_of(cursor)

    async def look(hub: Hub) -> list[Letter]:
        async with hub.autocommit() as tx:
            return await letters.every(tx, await which.filter(tx), state, before=before, limit=limit)

    found = errand(look, data_dir=data_dir, database_url=database_url)
    following = cursor_of(found, limit, "failed_at")
    lists.page(found, following, COLUMNS, cells, empty="No dead letters.", json=json)


@app.command
def groups(
    *,
    which: Which = EVERYTHING,
    state: Chosen = "unresolved",
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show what is broken: dead letters by what they share, the most frequent first."""

    async def look(hub: Hub) -> list[Group]:
        async with hub.autocommit() as tx:
            return await letters.groups(tx, await which.filter(tx), state)

    found = errand(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json([asdict(each) for each in found])
        return
    screen.table(
        ("letters", "first", "last", "example", "event types", "signature"),
        [
            (
                each.count,
                wide.local(each.first_failed_at),
                wide.local(each.last_failed_at),
                each.example,
                " ".join(each.event_types),
                each.signature,
            )
            for each in found
        ],
        empty="No dead letters.",
    )


@app.command
def show(letter: Ids, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show one dead letter: what its event carried, how each attempt ended, what was done about it."""

    async def look(hub: Hub) -> WholeLetter:
        async with hub.autocommit() as tx:
            return await letters.find(tx, letter)

    found = errand(look, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(found))
        return
    wide.facts(
        [
            ("dead letter", found.id),
            ("state", state_of(found)),
            ("event", f"{found.original_event_id}{'' if found.event_id else ' (its row is gone)'}"),
            ("death", found.death),
            ("type", found.original_event_type),
            ("from", found.original_source_service),
            ("to", found.original_target_service or "everybody"),
            ("failed", wide.local(found.failed_at)),
            ("code", found.error_code),
            ("signature", found.signature),
            ("resolved", wide.local(found.resolved_at)),
            ("by", found.resolved_by_actor),
            ("note", found.resolution_notes),
        ]
    )
    wide.block("error", found.error_message)
    if found.error_stack:
        wide.block("stack", found.error_stack)
    screen.table(
        ("attempt", "failed", "by", "error"),
        [
            (each["attempt"], wide.local(datetime.fromisoformat(each["at"])), each.get("worker", ""), each["error"])
            for each in found.error_history or ()
        ],
        empty="No attempts.",
    )
    wide.block("payload", wide.pretty(found.original_payload))


@app.command
def replay(
    *letter: Ids,
    all: Annotated[bool, Parameter(negative="", help="All unresolved ones that match.")] = False,  # noqa: A002 the option's name
    which: Which = EVERYTHING,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Let events live again, with all their attempts: those of the letters named, or with --all of all that match."""
    by = Actor(actor())
    if all == bool(letter):
        raise Invalid.one("ID", "say which dead letters, or --all")
    if not all:
        if which != EVERYTHING:
            raise Invalid.one("ID", "is said already; filters are for --all")
        tell(errand(lambda hub: one_by_one(hub, letter, by), data_dir=data_dir, database_url=database_url), json=json)
        return

    async def look(hub: Hub) -> tuple[Filter, Tally]:
        async with hub.autocommit() as tx:
            chosen = await which.filter(tx)
            tally = await count(tx, chosen)
        return replace(chosen, until=min(chosen.until or tally.at, tally.at)), tally

    chosen, tally = errand(look, data_dir=data_dir, database_url=database_url)
    if not yes and not (tally.count and agreed(f"Replay {letters_in_words(tally.count)}?")):
        raise Conflict("nothing was replayed" if tally.count else "no unresolved dead letter matches")

    async def do(hub: Hub) -> int:
        with screen.bar("replaying", tally.count) as step:
            return await replay_all(hub.transaction, chosen, by, step=step)

    done = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json({"matched": tally.count, "replayed": done})
    else:
        screen.say(f"{letters_in_words(done)} replayed")


@app.command
def resolve(
    *letter: Ids,
    note: Annotated[str, Parameter(help="What was done about it.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Say of dead letters that they are seen to. Their events stay as they are."""
    if not letter:
        raise Invalid.one("ID", "say which dead letters")
    if not note.strip():
        raise Invalid.one("note", "is empty")

    async def do(hub: Hub) -> list[UUID]:
        async with hub.transaction() as tx:
            if len(letter) == 1:
                return [(await letters.resolve_one(tx, letter[0], Actor(actor()), note)).id]
            return await letters.resolve(tx, letter, Actor(actor()), note)

    done = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json({"resolved": done})
    else:
        screen.say(f"{letters_in_words(len(done))} resolved")
    for each in [each for each in letter if each not in done]:
        screen.complain(f"{each}: there is no such dead letter, or it was dealt with already")
    if len({*letter}) > len(done):
        sys.exit(1)


def cells(letter: Letter) -> tuple[object, ...]:
    return (
        letter.id,
        wide.local(letter.failed_at),
        letter.original_event_type,
        letter.original_source_service,
        letter.original_target_service or "everybody",
        state_of(letter),
        screen.one_line(letter.error_message, SHOWN),
    )


async def one_by_one(hub: Hub, ids: Iterable[UUID], by: Actor) -> Answers:
    """Each in its own transaction: one that cannot be replayed does not hold up the others."""
    answers: Answers = []
    for each in dict.fromkeys(ids):
        try:
            async with hub.transaction() as tx:
                answers.append((each, await replay_one(tx, each, by), None))
        except (Conflict, NotFound) as error:
            answers.append((each, None, str(error)))
    return answers


def tell(answers: Answers, *, json: bool) -> None:
    if json:
        screen.as_json([{"id": each, "event_id": event, "why": why} for each, event, why in answers])
    for each, event, why in answers:
        if why:
            screen.complain(f"{each}: {why}")
        elif not json:
            screen.say(f"{each} replayed: event {event} lives again")
    if any(why for _, _, why in answers):
        sys.exit(1)


def agreed(question: str) -> bool:
    """Ask on standard error, so that what is printed for programs stays clean; silence is a no."""
    screen.err.print(Text(f"{question} [y/N] "), end="")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def letters_in_words(many: int) -> str:
    return f"{many} dead letter{'' if many == 1 else 's'}"


def state_of(letter: Letter) -> str:
    return "replayed" if letter.replayed_at else "resolved" if letter.resolved_at else "unresolved"
