"""`pabal dead-letter replay`."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated
from uuid import UUID

from pabal.cli.context import cli_actor, run_query, run_transactions
from pabal.cli.events.dead_letter import NO_OPTIONS, DeadLetterOptions, dead_letter_count_text, resolve_dead_letter_id
from pabal.cli.id_argument import IdArgument
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, SkipConfirmation, UsageError, flag
from pabal.cli.output import ask_confirmation, print_error, print_json, print_json_items, print_text, progress_bar
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, NotFound
from pabal.core.short_id import IdPattern
from pabal.db.pool import Database
from pabal.db.tx import Tx
from pabal.events.dead_letters.dead_letters import DeadLetterFilter
from pabal.events.dead_letters.replay import (
    ReplayCount,
    count_replayable_dead_letters,
    replay_dead_letter,
    replay_matching_dead_letters,
)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What became of one dead letter: the event that is pending again, or why it was not replayed."""

    id: UUID
    event_id: UUID | None
    why: str | None


def dead_letter_replay(
    *dead_letter_ids: IdArgument,
    all: Annotated[bool, flag("Replay every unresolved dead letter that matches.")] = False,
    options: DeadLetterOptions = NO_OPTIONS,
    yes: SkipConfirmation = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Replay dead letters: their events are pending again, with all their attempts."""
    actor = cli_actor()
    if not all and not dead_letter_ids:
        raise UsageError("Name the dead letters to replay, or use --all")
    if dead_letter_ids and (all or options != NO_OPTIONS):
        raise UsageError("Ids cannot be combined with --all or with filters")
    if not all:
        print_replay_results(
            run_transactions(connection, lambda db: replay_each(db, dead_letter_ids, actor)), json=json
        )
        return
    replay_all(connection, options, actor, yes=yes, json=json)


def replay_all(connection: Connection, options: DeadLetterOptions, actor: Actor, *, yes: bool, json: bool) -> None:
    """Count, ask, then replay what was counted: dead letters that arrive meanwhile are not included."""

    async def count(tx: Tx) -> tuple[DeadLetterFilter, ReplayCount]:
        criteria = await options.to_filter(tx)
        matches = await count_replayable_dead_letters(tx, criteria)
        return replace(criteria, until=min(criteria.until or matches.at, matches.at)), matches

    criteria, matches = run_query(connection, count)
    if not yes and not (matches.count and ask_confirmation(f"Replay {dead_letter_count_text(matches.count)}?")):
        raise Conflict("Nothing replayed" if matches.count else "No unresolved dead letter matches")

    async def replay(db: Database) -> int:
        with progress_bar("replaying", matches.count) as step:
            return await replay_matching_dead_letters(db.transaction, criteria, actor, on_progress=step)

    replayed = run_transactions(connection, replay)
    if json:
        print_json({"matched": matches.count, "replayed": replayed})
    else:
        print_text(f"{dead_letter_count_text(replayed)} replayed")


async def replay_each(db: Database, patterns: Iterable[IdPattern], actor: Actor) -> list[ReplayResult]:
    """Replay each in its own transaction, so that one that cannot be replayed does not stop the others."""
    results: list[ReplayResult] = []
    async with db.autocommit() as tx:
        ids = [await resolve_dead_letter_id(tx, pattern) for pattern in patterns]
    for dead_letter_id in dict.fromkeys(ids):
        try:
            async with db.transaction() as tx:
                event_id = await replay_dead_letter(tx, dead_letter_id, actor)
            results.append(ReplayResult(dead_letter_id, event_id, None))
        except (Conflict, NotFound) as error:
            results.append(ReplayResult(dead_letter_id, None, str(error)))
    return results


def print_replay_results(results: Sequence[ReplayResult], *, json: bool) -> None:
    if json:
        print_json_items(map(asdict, results))
    for result in results:
        if result.why:
            print_error(f"{result.id}: {result.why}")
        elif not json:
            print_text(f"{result.id} replayed; event {result.event_id} is pending again")
    if any(result.why for result in results):
        sys.exit(1)
