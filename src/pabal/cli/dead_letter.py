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

from pabal.cli.context import cli_actor, with_hub
from pabal.cli.options import Cursor, DatabaseUrl, DataDir, Json, Limit
from pabal.cli.output import (
    local_time,
    one_line,
    pretty_json,
    print_block,
    print_error,
    print_fields,
    print_json,
    print_page,
    print_table,
    print_text,
    progress_bar,
    stderr_console,
)
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.db.tx import Tx
from pabal.events.dead_letters import (
    DeadLetter,
    DeadLetterDetail,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterState,
    database_now,
    find_dead_letter,
    group_dead_letters,
    list_dead_letters,
    resolve_dead_letter,
    resolve_dead_letters,
)
from pabal.events.replay import (
    ReplayCount,
    count_replayable_dead_letters,
    replay_dead_letter,
    replay_matching_dead_letters,
)
from pabal.hub import Hub
from pabal.settings import parse_duration
from pabal.web.pagination import decode_cursor, next_cursor

app = cyclopts.App(name="dead", help="Events that failed for good: look at them, replay them, resolve them.")

COLUMNS = ("id", "failed", "event type", "from", "to", "state", "error")
MAX_ERROR_CHARS = 60
"""Characters of an error a list has room for."""


def parse_time_or_ago(_kind: Any, tokens: Sequence[cyclopts.Token]) -> timedelta | datetime:
    """Read how long ago, as the settings write it, or a moment; without an offset that is local time."""
    written = tokens[0].value
    try:
        return parse_duration(written)
    except ValueError:
        try:
            return datetime.fromisoformat(written).astimezone()
        except ValueError:
            raise ValueError("is how long ago (90s, 15m, 2h, 7d) or a moment (2026-01-31T18:00)") from None


TimeOption = Annotated[
    timedelta | datetime | None, Parameter(converter=parse_time_or_ago, n_tokens=1, accepts_keys=False)
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class DeadLetterOptions:
    """Which dead letters."""

    type: Annotated[str | None, Parameter(help="Of this event type; * stands for anything.")] = None
    source: Annotated[str | None, Parameter(help="Published by this service.")] = None
    target: Annotated[str | None, Parameter(help="For this service.")] = None
    signature: Annotated[str | None, Parameter(help="Of this cause, as `pabal dead groups` shows it.")] = None
    error_code: Annotated[str | None, Parameter(help="With this error code.")] = None
    since: Annotated[TimeOption, Parameter(help="Failed since: 2h (ago), or a moment.")] = None
    until: Annotated[TimeOption, Parameter(help="Failed before: 2h (ago), or a moment.")] = None

    async def to_filter(self, tx: Tx) -> DeadLetterFilter:
        """Times are the database's: it is what they are held against."""
        now = await database_now(tx)
        since, until = (now - each if isinstance(each, timedelta) else each for each in (self.since, self.until))
        return DeadLetterFilter(self.type, self.source, self.target, self.signature, self.error_code, since, until)


NO_OPTIONS = DeadLetterOptions()

DeadLetterArgument = Annotated[UUID, Parameter(name="ID", help="The dead letter, as `pabal dead list` shows it.")]
StateOption = Annotated[DeadLetterState, Parameter(help="Those that nobody has seen to, those that are, or all.")]
ReplayResults = list[tuple[UUID, UUID | None, str | None]]
"""For each dead letter: the event that lives again, or why not."""


@app.command(name="list")
def dead_letter_list(
    *,
    options: DeadLetterOptions = NO_OPTIONS,
    state: StateOption = "unresolved",
    limit: Limit = 50,
    cursor: Cursor = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show dead letters, the newest first."""
    before = decode_cursor(cursor)

    async def look(hub: Hub) -> list[DeadLetter]:
        async with hub.autocommit() as tx:
            return await list_dead_letters(tx, await options.to_filter(tx), state, before=before, limit=limit)

    found = with_hub(look, data_dir=data_dir, database_url=database_url)
    following = next_cursor(found, limit, "failed_at")
    print_page(found, following, COLUMNS, dead_letter_cells, empty="No dead letters.", json=json)


@app.command(name="groups")
def dead_letter_groups(
    *,
    options: DeadLetterOptions = NO_OPTIONS,
    state: StateOption = "unresolved",
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show what is broken: dead letters by what they share, the most frequent first."""

    async def look(hub: Hub) -> list[DeadLetterGroup]:
        async with hub.autocommit() as tx:
            return await group_dead_letters(tx, await options.to_filter(tx), state)

    found = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        print_json([asdict(each) for each in found])
        return
    print_table(
        ("letters", "first", "last", "example", "event types", "signature"),
        [
            (
                each.count,
                local_time(each.first_failed_at),
                local_time(each.last_failed_at),
                each.example,
                " ".join(each.event_types),
                each.signature,
            )
            for each in found
        ],
        empty="No dead letters.",
    )


@app.command(name="show")
def dead_letter_show(
    dead_letter_id: DeadLetterArgument,
    /,
    *,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show one dead letter: what its event carried, how each attempt ended, what was done about it."""

    async def look(hub: Hub) -> DeadLetterDetail:
        async with hub.autocommit() as tx:
            return await find_dead_letter(tx, dead_letter_id)

    found = with_hub(look, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(asdict(found))
        return
    print_fields(
        [
            ("dead letter", found.id),
            ("state", dead_letter_state(found)),
            ("event", f"{found.original_event_id}{'' if found.event_id else ' (its row is gone)'}"),
            ("death", found.death),
            ("type", found.original_event_type),
            ("from", found.original_source_service),
            ("to", found.original_target_service or "everybody"),
            ("failed", local_time(found.failed_at)),
            ("code", found.error_code),
            ("signature", found.signature),
            ("resolved", local_time(found.resolved_at)),
            ("by", found.resolved_by_actor),
            ("note", found.resolution_notes),
        ]
    )
    print_block("error", found.error_message)
    if found.error_stack:
        print_block("stack", found.error_stack)
    print_table(
        ("attempt", "failed", "by", "error"),
        [
            (
                each["attempt"],
                local_time(datetime.fromisoformat(each["at"])),
                each.get("worker", ""),
                each["error"],
            )
            for each in found.error_history or ()
        ],
        empty="No attempts.",
    )
    print_block("payload", pretty_json(found.original_payload))


@app.command(name="replay")
def dead_letter_replay(
    *dead_letter_ids: DeadLetterArgument,
    all: Annotated[bool, Parameter(negative="", help="All unresolved ones that match.")] = False,
    options: DeadLetterOptions = NO_OPTIONS,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Let events live again, with all their attempts: those of the letters named, or with --all of all that match."""
    by = Actor(cli_actor())
    if all == bool(dead_letter_ids):
        raise Invalid.of_field("ID", "say which dead letters, or --all")
    if not all:
        if options != NO_OPTIONS:
            raise Invalid.of_field("ID", "is said already; filters are for --all")
        print_replay_results(
            with_hub(lambda hub: replay_each(hub, dead_letter_ids, by), data_dir=data_dir, database_url=database_url),
            json=json,
        )
        return

    async def look(hub: Hub) -> tuple[DeadLetterFilter, ReplayCount]:
        async with hub.autocommit() as tx:
            chosen = await options.to_filter(tx)
            tally = await count_replayable_dead_letters(tx, chosen)
        return replace(chosen, until=min(chosen.until or tally.at, tally.at)), tally

    chosen, tally = with_hub(look, data_dir=data_dir, database_url=database_url)
    if not yes and not (tally.count and ask_confirmation(f"Replay {dead_letter_count_text(tally.count)}?")):
        raise Conflict("nothing was replayed" if tally.count else "no unresolved dead letter matches")

    async def do(hub: Hub) -> int:
        with progress_bar("replaying", tally.count) as step:
            return await replay_matching_dead_letters(hub.transaction, chosen, by, on_progress=step)

    done = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        print_json({"matched": tally.count, "replayed": done})
    else:
        print_text(f"{dead_letter_count_text(done)} replayed")


@app.command(name="resolve")
def dead_letter_resolve(
    *dead_letter_ids: DeadLetterArgument,
    note: Annotated[str, Parameter(help="What was done about it.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Say of dead letters that they are seen to. Their events stay as they are."""
    if not dead_letter_ids:
        raise Invalid.of_field("ID", "say which dead letters")
    if not note.strip():
        raise Invalid.of_field("note", "is empty")

    async def do(hub: Hub) -> list[UUID]:
        async with hub.transaction() as tx:
            if len(dead_letter_ids) == 1:
                return [(await resolve_dead_letter(tx, dead_letter_ids[0], Actor(cli_actor()), note)).id]
            return await resolve_dead_letters(tx, dead_letter_ids, Actor(cli_actor()), note)

    done = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        print_json({"resolved": done})
    else:
        print_text(f"{dead_letter_count_text(len(done))} resolved")
    for each in [each for each in dead_letter_ids if each not in done]:
        print_error(f"{each}: there is no such dead letter, or it was dealt with already")
    if len({*dead_letter_ids}) > len(done):
        sys.exit(1)


def dead_letter_cells(dead_letter: DeadLetter) -> tuple[object, ...]:
    return (
        dead_letter.id,
        local_time(dead_letter.failed_at),
        dead_letter.original_event_type,
        dead_letter.original_source_service,
        dead_letter.original_target_service or "everybody",
        dead_letter_state(dead_letter),
        one_line(dead_letter.error_message, MAX_ERROR_CHARS),
    )


async def replay_each(hub: Hub, ids: Iterable[UUID], actor: Actor) -> ReplayResults:
    """Each in its own transaction: one that cannot be replayed does not hold up the others."""
    answers: ReplayResults = []
    for each in dict.fromkeys(ids):
        try:
            async with hub.transaction() as tx:
                answers.append((each, await replay_dead_letter(tx, each, actor), None))
        except (Conflict, NotFound) as error:
            answers.append((each, None, str(error)))
    return answers


def print_replay_results(results: ReplayResults, *, json: bool) -> None:
    if json:
        print_json([{"id": each, "event_id": event, "why": why} for each, event, why in results])
    for each, event, why in results:
        if why:
            print_error(f"{each}: {why}")
        elif not json:
            print_text(f"{each} replayed: event {event} lives again")
    if any(why for _, _, why in results):
        sys.exit(1)


def ask_confirmation(question: str) -> bool:
    """Ask on standard error, so that what is printed for programs stays clean; silence is a no."""
    stderr_console.print(Text(f"{question} [y/N] "), end="")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def dead_letter_count_text(count: int) -> str:
    return f"{count} dead letter{'' if count == 1 else 's'}"


def dead_letter_state(dead_letter: DeadLetter) -> str:
    return "replayed" if dead_letter.replayed_at else "resolved" if dead_letter.resolved_at else "unresolved"
