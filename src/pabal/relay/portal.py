"""The portal's sign-ins: an owner shows a token once, and a browser keeps something else for it."""

import secrets
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import Unauthenticated
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.limits import Limit
from pabal.relay.bearer import Bearer, Owner, bearer_by, bearer_of, digest, hold, still

Q = beside(__file__)

LIFE = timedelta(hours=12)
PER_ADDRESS = Limit("sign-ins to the portal", 10, timedelta(minutes=5))


@dataclass(frozen=True, slots=True)
class Awaited:
    """The code of a session that nobody has paired yet, and how long it is good for."""

    code: str
    left: timedelta


async def enter(tx: Tx, token: str, by: Actor) -> str:
    """Let in whoever shows a good token; what their browser keeps. `by` says from where they come, not yet who."""
    bearer = await bearer_of(tx, token)
    cookie = secrets.token_urlsafe(32)
    await tx.run(Q.enter, cookie_hash=digest(cookie), token_hash=digest(token), life=LIFE)
    await did(tx, replace(by, name=name_of(bearer)), "portal.signed_in", str(bearer.token))
    return cookie


async def inside(tx: Tx, cookie: str) -> Bearer:
    """Whoever is signed in, as the token they showed stands now: one that died has ended this too."""
    return await bearer_by(tx, await shown(tx, cookie))


async def shown(tx: Tx, cookie: str) -> str:
    """What is kept of the token that a browser showed."""
    token_hash = await tx.value(Q.shown, cookie_hash=digest(cookie))
    if token_hash is None:
        raise Unauthenticated("nobody is signed in here")
    return token_hash


async def stays(tx: Tx, cookie: str, owner: Owner) -> str:
    """See that an owner who was let in still is, and until this transaction ends; what is kept of their token."""
    await hold(tx, owner)
    token_hash = await shown(tx, cookie)
    await still(tx, owner, token_hash)
    return token_hash


async def go_on(tx: Tx, cookie: str, before: str, token: str) -> None:
    """Let one browser stay in with the token that took the place of the one it showed, of which `before` is kept."""
    await tx.run(Q.go_on, cookie_hash=digest(cookie), before=before, token_hash=digest(token))


async def leave(tx: Tx, cookie: str) -> None:
    await tx.run(Q.leave, cookie_hash=digest(cookie))


async def awaited(tx: Tx, session: UUID) -> Awaited | None:
    """The code a session waits with; None for one that waits no longer."""
    return await tx.maybe(Awaited, Q.awaited, session=session)


async def sweep(tx: Tx, batch: int) -> int:
    """Drop the sign-ins that have expired; how many went."""
    return await tx.run(Q.sweep, batch=batch)


def name_of(bearer: Bearer) -> str:
    """As the audit log calls them: the account, or the session that has none yet."""
    return f"account:{bearer.account}" if bearer.account else f"session:{bearer.session}"
