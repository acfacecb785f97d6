"""Take one from a limit, or be told how long to wait."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from pabal.core.errors import TooMany
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Limit:
    """`count` of something in any `span`, spread evenly after the first burst."""

    what: str
    count: int
    span: timedelta


async def take(tx: Tx, limit: Limit, key: str, count: int = 1) -> None:
    """Count a call of `key`, or so many at once, all or none; or raise TooMany. More than the limit are all of it.

    Give it a transaction of its own: a limit that is rolled back with the work it guards limits nothing.
    """
    step = limit.span // limit.count * min(count, limit.count)
    call = {"key": f"{limit.what}:{key}", "step": step, "span": limit.span}
    if not await tx.value(Q.take, **call):
        raise TooMany(limit.what, await tx.value(Q.wait, **call) or step)


@dataclass(frozen=True, slots=True)
class Standing:
    """How somebody stands with a limit: how long they must wait, and whether anything is counted against them."""

    wait: timedelta
    counted: bool


async def look(tx: Tx, *calls: tuple[Limit, str]) -> list[Standing]:
    """How each of these stands, in one statement that counts nothing."""
    return await tx.all(
        Standing,
        Q.look,
        keys=[f"{limit.what}:{key}" for limit, key in calls],
        steps=[limit.span // limit.count for limit, _ in calls],
        spans=[limit.span for limit, _ in calls],
    )


async def hold(tx: Tx, what: str, key: str, span: timedelta) -> None:
    """Let nobody through for this long, because somebody else's server said so; a longer wait stays."""
    await tx.run(Q.hold, key=f"{what}:{key}", span=span)


async def held(tx: Tx, what: str, keys: Sequence[str]) -> timedelta:
    """How long the longest of these holds still lasts."""
    return await tx.value(Q.held, keys=[f"{what}:{key}" for key in keys])


async def reserve(tx: Tx, limit: Limit, key: str, within: timedelta) -> timedelta:
    """Take the next free place, and be told how long it is until then; TooMany when that is not within the time."""
    call = {"key": f"{limit.what}:{key}", "step": limit.span // limit.count, "span": limit.span}
    wait = await tx.value(Q.reserve, **call, within=within)
    if wait is None:
        raise TooMany(limit.what, within)
    return wait


async def forget(tx: Tx, batch: int) -> int:
    """Drop up to `batch` limits that limit nobody any more; how many went."""
    return await tx.run(Q.forget, batch=batch)
