"""What is done about dead letters: replay them, or say that they are seen to. One, those ticked, or all that match."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.gate import Action, Form, operator_actor
from pabal.console.letters import DEAD_LETTERS_PATH, FILTER_NAMES, parse_dead_letter_filter
from pabal.console.pages import build_url, confirm_page, is_count_confirmed, redirect_with_flash
from pabal.console.things import dead_letter_url
from pabal.core.errors import Invalid
from pabal.db.tx import Tx
from pabal.events import letters
from pabal.events.replay import (
    list_oldest_dead_letter_ids,
    lock_replayable_dead_letters,
    replay_dead_letter,
    requeue_dead_letters,
)
from pabal.operators.operators import OperatorSession
from pabal.wiring import Hub

MAX_BATCH = 5000
"""Letters of one deed. It is one transaction, so that exactly what was agreed to is done; nobody waits long for it."""
MAX_NOTE_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Which letters a form means, what it is asked again with, and where it came from."""

    ids: Sequence[UUID]
    fields: Form
    return_url: str

    @property
    def single_id(self) -> UUID | None:
        return self.ids[0] if len(self.ids) == 1 else None


async def replay_dead_letters_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Let their events live again: so many as was agreed to, or ask."""
    actor = operator_actor(request, session)
    async with hub.transaction() as tx:
        asked = await read_selection(tx, fields)
        good = await lock_replayable_dead_letters(tx, asked.ids)
        if not good and asked.single_id:
            await replay_dead_letter(tx, asked.single_id, actor)  # which says why not
        if not good:
            return redirect_with_flash(asked.return_url, "nothing to replay")
        if not is_count_confirmed(fields, len(good)):
            return confirm_dead_letters_page(request, session, asked, "replay", len(good))
        lives = await requeue_dead_letters(tx, good, actor)
    return redirect_with_flash(asked.return_url, "replayed so many", n=len(lives))


async def resolve_dead_letters_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Say that they are seen to, and how: so many as was agreed to, or ask."""
    actor, note = operator_actor(request, session), parse_resolution_note(fields)
    async with hub.transaction() as tx:
        asked = await read_selection(tx, fields)
        still = await letters.lock_open_dead_letters(tx, asked.ids)
        if not still and asked.single_id:
            await letters.resolve_dead_letter(tx, asked.single_id, actor, note)  # which says why not
        if not still:
            return redirect_with_flash(asked.return_url, "nothing to resolve")
        if not is_count_confirmed(fields, len(still)):
            return confirm_dead_letters_page(request, session, asked, "resolve", len(still))
        done = await letters.resolve_dead_letters(tx, still, actor, note)
    return redirect_with_flash(asked.return_url, "resolved so many", n=len(done))


def confirm_dead_letters_page(
    request: Request, session: OperatorSession, selection: DeadLetterSelection, verb: str, count: int
) -> Response:
    """Those that cannot be meant are left out of the number, so it may be smaller than what was ticked."""
    says = f"{verb} oldest" if len(selection.ids) == MAX_BATCH else f"{verb} many"
    return confirm_page(
        request, session, text_id=says, count=count, fields=selection.fields, return_url=selection.return_url
    )


async def read_selection(tx: Tx, fields: Form) -> DeadLetterSelection:
    """Find out which are meant. What dies after the question was asked is not among all that match."""
    sought = {name: fields[name] for name in ("signature", *FILTER_NAMES) if fields.get(name)}
    if "all" not in fields:
        ids = [*dict.fromkeys(map(parse_dead_letter_id, fields.getlist("letter")))]
        if not ids:
            raise Invalid.of_field("letter", "is missing: tick at least one")
        back = dead_letter_url(ids[0]) if "one" in fields else build_url(f"{DEAD_LETTERS_PATH}/letters", **sought)
        return DeadLetterSelection(ids, fields, back)
    now = await letters.database_now(tx)
    which = parse_dead_letter_filter(sought | {"until": fields.get("until") or now.isoformat()}, now)
    said = dict(fields) | {name: at.isoformat() for name, at in (("since", which.since), ("until", which.until)) if at}
    back = build_url(f"{DEAD_LETTERS_PATH}/letters" if "signature" in sought else DEAD_LETTERS_PATH, **sought)
    return DeadLetterSelection(await list_oldest_dead_letter_ids(tx, which, MAX_BATCH), ImmutableMultiDict(said), back)


def parse_dead_letter_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid.of_field("letter", "is not an id") from None


def parse_resolution_note(fields: Form) -> str:
    note = fields.get("note", "").strip()
    if not 0 < len(note) <= MAX_NOTE_LENGTH:
        raise Invalid.of_field("note", f"is 1 to {MAX_NOTE_LENGTH} characters: what was done about it")
    return note


PAGES = (
    Action(f"{DEAD_LETTERS_PATH}/replay", replay_dead_letters_action),
    Action(f"{DEAD_LETTERS_PATH}/resolve", resolve_dead_letters_action),
)
