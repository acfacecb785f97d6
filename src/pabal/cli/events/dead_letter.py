"""`pabal dead-letter list|groups|show|replay|resolve`."""

import sys
from dataclasses import asdict, dataclass
from typing import Annotated
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import cli_actor, run_query, run_transaction
from pabal.cli.examples import examples
from pabal.cli.id_argument import IdArgument, resolve_id
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Cursor, Json, Limit, UsageError
from pabal.cli.output import (
    local_time,
    one_line,
    pretty_json,
    print_block,
    print_error,
    print_fields,
    print_json,
    print_page,
    print_rows,
    print_table,
    print_text,
)
from pabal.cli.time_range import ANY_TIME, TimeRange
from pabal.core.cursor import decode_cursor, next_cursor
from pabal.core.short_id import IdPattern
from pabal.db.tx import Tx
from pabal.events.dead_letters.dead_letters import (
    DeadLetter,
    DeadLetterDetail,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterState,
    find_dead_letter,
    group_dead_letters,
    list_dead_letters,
    resolve_dead_letter,
    resolve_dead_letters,
)
from pabal.events.id_lookup import match_dead_letter_ids

app = cyclopts.App(
    name="dead-letter",
    help="Inspect, replay and resolve dead letters.\n\nA dead letter is an event whose every attempt failed.",
    help_epilogue=examples("dead-letter groups", "dead-letter replay --all --type 'order.*'"),
)

app.command(
    "pabal.cli.events.dead_letter_replay:dead_letter_replay",
    name="replay",
    help="Replay dead letters: their events are pending again, with all their attempts.",
    help_epilogue=examples("dead-letter replay 01a1e213…ea569f", "dead-letter replay --all --target billing --yes"),
)

COLUMNS = ("id", "failed", "event type", "from", "to", "state", "error")
GROUP_COLUMNS = ("dead letters", "first", "last", "example", "event types", "signature")
MAX_ERROR_CHARS = 60


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class DeadLetterOptions:
    """Filters of dead letters."""

    type: Annotated[str | None, Parameter(help="Only this event type; * matches anything.")] = None
    source: Annotated[str | None, Parameter(help="Only events published by this service.")] = None
    target: Annotated[str | None, Parameter(help="Only events for this service.")] = None
    signature: Annotated[
        str | None, Parameter(help="Only this error signature, as `pabal dead-letter groups` shows it.")
    ] = None
    error_code: Annotated[str | None, Parameter(help="Only this error code.")] = None
    time_range: TimeRange = ANY_TIME

    async def to_filter(self, tx: Tx) -> DeadLetterFilter:
        bounds = await self.time_range.bounds(tx)
        return DeadLetterFilter(
            self.type, self.source, self.target, self.signature, self.error_code, bounds.since, bounds.until
        )


NO_OPTIONS = DeadLetterOptions()

StateOption = Annotated[DeadLetterState, Parameter(help="Only dead letters in this state.")]


@app.command(
    name="list",
    help_epilogue=examples("dead-letter list --since 2h", "dead-letter list --target billing --state all"),
)
def dead_letter_list(
    *,
    options: DeadLetterOptions = NO_OPTIONS,
    state: StateOption = "unresolved",
    limit: Limit = 50,
    cursor: Cursor = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """List dead letters, newest first."""
    before = decode_cursor(cursor)

    async def read(tx: Tx) -> list[DeadLetter]:
        return await list_dead_letters(tx, await options.to_filter(tx), state, before=before, limit=limit)

    rows = run_query(connection, read)
    following = next_cursor(rows, limit, "failed_at")
    print_page(rows, following, COLUMNS, dead_letter_cells, empty="No dead letters.", json=json)


@app.command(name="groups", help_epilogue=examples("dead-letter groups", "dead-letter groups --since 7d --state all"))
def dead_letter_groups(
    *,
    options: DeadLetterOptions = NO_OPTIONS,
    state: StateOption = "unresolved",
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Group dead letters by error, most frequent first."""

    async def read(tx: Tx) -> list[DeadLetterGroup]:
        return await group_dead_letters(tx, await options.to_filter(tx), state)

    print_rows(run_query(connection, read), GROUP_COLUMNS, group_cells, empty="No dead letters.", json=json)


@app.command(
    name="show", help_epilogue=examples("dead-letter show 01a1e213…ea569f", "dead-letter show 01a1e213…ea569f --json")
)
def dead_letter_show(
    dead_letter_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Show a dead letter: the event's payload, every attempt and its error, and how it was resolved."""

    async def read(tx: Tx) -> DeadLetterDetail:
        return await find_dead_letter(tx, await resolve_dead_letter_id(tx, dead_letter_id))

    detail = run_query(connection, read)
    if json:
        print_json(asdict(detail))
        return
    print_fields(
        [
            ("dead letter", detail.id),
            ("state", dead_letter_state(detail)),
            ("event", f"{detail.original_event_id}{'' if detail.event_id else ' (deleted)'}"),
            ("failure", detail.death),
            ("type", detail.original_event_type),
            ("from", detail.original_source_service),
            ("to", detail.original_target_service or "all subscribers"),
            ("failed", local_time(detail.failed_at)),
            ("code", detail.error_code),
            ("signature", detail.signature),
            ("resolved", local_time(detail.resolved_at)),
            ("by", detail.resolved_by_actor),
            ("note", detail.resolution_notes),
        ]
    )
    print_block("error", detail.error_message)
    if detail.error_stack:
        print_block("stack", detail.error_stack)
    print_table(
        ("attempt", "failed", "by", "error"),
        [
            (attempt.attempt or position, local_time(attempt.at), attempt.worker or "", attempt.error)
            for position, attempt in enumerate(detail.error_history, 1)
        ],
        empty="No attempts.",
    )
    print_block("payload", pretty_json(detail.original_payload))


@app.command(
    name="resolve",
    help_epilogue=examples(
        "dead-letter resolve 01a1e213…ea569f --note 'refunded by hand'",
        "dead-letter resolve 01a1e213…ea569f 01a1e214…0b7c11 --note 'fixed in 2.4'",
    ),
)
def dead_letter_resolve(
    *dead_letter_ids: IdArgument,
    note: Annotated[str, Parameter(help="How it was resolved.")],
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Mark dead letters as resolved. Their events do not change."""
    if not dead_letter_ids:
        raise UsageError("Name the dead letters to resolve")
    if not note.strip():
        raise UsageError("--note must not be empty")

    async def resolve(tx: Tx) -> tuple[list[UUID], list[UUID]]:
        ids = [*dict.fromkeys([await resolve_dead_letter_id(tx, pattern) for pattern in dead_letter_ids])]
        if len(ids) == 1:
            return ids, [(await resolve_dead_letter(tx, ids[0], cli_actor(), note)).id]
        return ids, await resolve_dead_letters(tx, ids, cli_actor(), note)

    ids, resolved = run_transaction(connection, resolve)
    if json:
        print_json({"resolved": resolved})
    else:
        print_text(f"{dead_letter_count_text(len(resolved))} resolved")
    unresolved = [dead_letter_id for dead_letter_id in ids if dead_letter_id not in resolved]
    for dead_letter_id in unresolved:
        print_error(f"{dead_letter_id}: not found or already resolved")
    if unresolved:
        sys.exit(1)


async def resolve_dead_letter_id(tx: Tx, pattern: IdPattern) -> UUID:
    return await resolve_id(tx, pattern, "dead letter", match_dead_letter_ids)


def dead_letter_cells(dead_letter: DeadLetter) -> tuple[object, ...]:
    return (
        dead_letter.id,
        local_time(dead_letter.failed_at),
        dead_letter.original_event_type,
        dead_letter.original_source_service,
        dead_letter.original_target_service or "all subscribers",
        dead_letter_state(dead_letter),
        one_line(dead_letter.error_message, MAX_ERROR_CHARS),
    )


def group_cells(group: DeadLetterGroup) -> tuple[object, ...]:
    return (
        group.count,
        local_time(group.first_failed_at),
        local_time(group.last_failed_at),
        group.example,
        " ".join(group.event_types),
        group.signature,
    )


def dead_letter_count_text(count: int) -> str:
    return f"{count} dead letter{'' if count == 1 else 's'}"


def dead_letter_state(dead_letter: DeadLetter) -> str:
    return "replayed" if dead_letter.replayed_at else "resolved" if dead_letter.resolved_at else "unresolved"
