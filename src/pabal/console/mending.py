"""What is done about dead letters: replay them, or say that they are seen to. One, those ticked, or all that match."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.gate import Deed, Form, by
from pabal.console.letters import NARROWED, ROOM, filter_of
from pabal.console.pages import confirm, confirmed, link, then
from pabal.console.things import letter_page
from pabal.core.errors import Invalid
from pabal.db.tx import Tx
from pabal.events import letters
from pabal.events.replay import oldest, replay_one, revive, willing
from pabal.operators.operators import Session
from pabal.wiring import Hub

MOST = 5000
"""Letters of one deed. It is one transaction, so that exactly what was agreed to is done; nobody waits long for it."""
LONGEST = 2000


@dataclass(frozen=True, slots=True)
class Asked:
    """Which letters a form means, what it is asked again with, and where it came from."""

    ids: Sequence[UUID]
    carries: Form
    back: str

    @property
    def only(self) -> UUID | None:
        return self.ids[0] if len(self.ids) == 1 else None


async def replay(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Let their events live again: so many as was agreed to, or ask."""
    actor = by(request, session)
    async with hub.transaction() as tx:
        asked = await read(tx, given)
        good = await willing(tx, asked.ids)
        if not good and asked.only:
            await replay_one(tx, asked.only, actor)  # which says why not
        if not good:
            return then(asked.back, "nothing to replay")
        if not confirmed(given, len(good)):
            return ask(request, session, asked, "replay", len(good))
        lives = await revive(tx, good, actor)
    return then(asked.back, "replayed so many", n=len(lives))


async def resolve(hub: Hub, request: Request, session: Session, given: Form) -> Response:
    """Say that they are seen to, and how: so many as was agreed to, or ask."""
    actor, note = by(request, session), note_in(given)
    async with hub.transaction() as tx:
        asked = await read(tx, given)
        still = await letters.hold(tx, asked.ids)
        if not still and asked.only:
            await letters.resolve_one(tx, asked.only, actor, note)  # which says why not
        if not still:
            return then(asked.back, "nothing to resolve")
        if not confirmed(given, len(still)):
            return ask(request, session, asked, "resolve", len(still))
        done = await letters.resolve(tx, still, actor, note)
    return then(asked.back, "resolved so many", n=len(done))


def ask(request: Request, session: Session, asked: Asked, deed: str, count: int) -> Response:
    """Those that cannot be meant are left out of the number, so it may be smaller than what was ticked."""
    says = f"{deed} oldest" if len(asked.ids) == MOST else f"{deed} many"
    return confirm(request, session, says=says, count=count, carries=asked.carries, back=asked.back)


async def read(tx: Tx, given: Form) -> Asked:
    """Find out which are meant. What dies after the question was asked is not among all that match."""
    sought = {name: given[name] for name in ("signature", *NARROWED) if given.get(name)}
    if "all" not in given:
        ids = [*dict.fromkeys(map(id_in, given.getlist("letter")))]
        if not ids:
            raise Invalid.one("letter", "is missing: tick at least one")
        back = letter_page(ids[0]) if "one" in given else link(f"{ROOM}/letters", **sought)
        return Asked(ids, given, back)
    now = await letters.clock(tx)
    which = filter_of(sought | {"until": given.get("until") or now.isoformat()}, now)
    said = dict(given) | {name: at.isoformat() for name, at in (("since", which.since), ("until", which.until)) if at}
    back = link(f"{ROOM}/letters" if "signature" in sought else ROOM, **sought)
    return Asked(await oldest(tx, which, MOST), ImmutableMultiDict(said), back)


def id_in(written: str) -> UUID:
    try:
        return UUID(written)
    except ValueError:
        raise Invalid.one("letter", "is not an id") from None


def note_in(given: Form) -> str:
    note = given.get("note", "").strip()
    if not 0 < len(note) <= LONGEST:
        raise Invalid.one("note", f"is 1 to {LONGEST} characters: what was done about it")
    return note


PAGES = (
    Deed(f"{ROOM}/replay", replay),
    Deed(f"{ROOM}/resolve", resolve),
)
