"""A glance at a log of any length: a portion of it, and where to go on."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pabal.audit import glance as module
from pabal.audit.glance import Glance, glance
from pabal.audit.history import Wanted
from pabal.audit.record import Deed, record
from pabal.core.errors import Invalid
from pabal.wiring import Hub

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
ALL = Wanted()


async def write(hub: Hub, *deeds: Deed) -> None:
    async with hub.transaction() as tx:
        for deed in deeds:
            await record(tx, deed)


async def seen(hub: Hub, wanted: Wanted = ALL, limit: int = 50, cursor: str | None = None) -> Glance:
    async with hub.autocommit() as tx:
        return await glance(tx, wanted, limit, cursor)


async def test_an_empty_log_has_no_pages(hub: Hub) -> None:
    assert await seen(hub) == Glance([], None, cut=False)
    assert await seen(hub, Wanted(since=timedelta(hours=1))) == Glance([], None, cut=False)
    assert await seen(hub, cursor="1") == Glance([], None, cut=False)


async def test_it_goes_from_the_newest_to_the_oldest_page_by_page(hub: Hub) -> None:
    await write(hub, *(Deed("a", "x.done", str(n)) for n in range(5)))

    first = await seen(hub, limit=3)
    second = await seen(hub, limit=3, cursor=first.cursor)

    assert [each.subject for each in (*first.items, *second.items)] == ["4", "3", "2", "1", "0"]
    assert (second.cursor, first.cut, second.cut) == (None, False, False)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(actor="b"), ["2"]),
        (Wanted(action="y."), ["2", "1"]),
        (Wanted(subject="1"), ["1"]),
        (Wanted(actor="a", action="y", subject="1"), ["1"]),
        (Wanted(actor="b", subject="1"), []),
        (Wanted(action="%"), []),
    ],
)
async def test_it_finds_what_is_wanted(hub: Hub, wanted: Wanted, found: list[str]) -> None:
    await write(hub, Deed("a", "x.done", "0"), Deed("a", "y.done", "1"), Deed("b", "y.made", "2"))

    assert [each.subject for each in (await seen(hub, wanted)).items] == found


async def test_since_leaves_out_what_is_older(hub: Hub, travel: Travel) -> None:
    await write(hub, Deed("a", "x.done", "old"))
    await travel(timedelta(hours=2))
    await write(hub, Deed("a", "x.done", "new"))

    for wanted in (Wanted(since=timedelta(hours=1)), Wanted(since=timedelta(hours=1), actor="a")):
        assert [each.subject for each in (await seen(hub, wanted)).items] == ["new"]
    assert len((await seen(hub, Wanted(since=timedelta(hours=3)))).items) == 2


@pytest.mark.parametrize("wanted", [Wanted(actor="rare"), Wanted(action="rare."), Wanted(actor="rare", subject="s")])
async def test_what_is_rare_is_looked_for_a_portion_at_a_time(
    hub: Hub, wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PORTION", 10)
    await write(hub, Deed("rare", "rare.done", "s"), *(Deed("a", "x.done", "s") for _ in range(25)))
    await write(hub, Deed("rare", "rare.done", "s"), *(Deed("a", "x.done", "s") for _ in range(25)))

    found, looks, cursor = 0, 0, None
    while True:
        page = await seen(hub, wanted, cursor=cursor)
        found, looks, cursor = found + len(page.items), looks + 1, page.cursor
        assert page.cut == (cursor is not None)
        if cursor is None:
            break

    assert (found, looks) == (2, 6)


@pytest.mark.parametrize("cursor", ["x", "-1", "1" * 20, "\u0661"])
async def test_a_cursor_somebody_made_up_is_refused(hub: Hub, cursor: str) -> None:
    with pytest.raises(Invalid, match="cursor"):
        await seen(hub, cursor=cursor)
