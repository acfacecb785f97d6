"""Operator sessions: their lifetime, and the rotation of the cookie."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from statistics import median
from uuid import UUID

import pytest

from pabal.core.actor import Actor
from pabal.core.errors import NotFound, Unauthenticated
from pabal.db.queries import parse_queries
from pabal.hub import Hub
from pabal.operators.operators import (
    Operator,
    OperatorCredentials,
    OperatorSession,
    Role,
    add_operator,
    find_operator_credentials,
    set_operator_password,
)
from pabal.operators.password import hash_password
from pabal.operators.sessions import (
    authenticate_operator,
    create_operator_session,
    derive_next_cookie,
    end_operator_sessions,
    find_operator_session,
    is_operator_session_active,
    list_operator_sessions,
    purge_operator_sessions,
    sign_out_operator,
)

pytestmark = pytest.mark.anyio

HORSE = "correct horse"
SOMEWHERE = Actor("operator:Mina", "10.0.0.9", "a browser")
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
Travel = Callable[[timedelta], Awaitable[None]]

COUNT, EVERYTHING, SEEN, ACTIONS = parse_queries("""
-- name: count
select count(*) from pabal.operator_sessions
-- name: everything
select string_agg(o::text || coalesce(s::text, ''), ' ')
from pabal.operators o left join pabal.operator_sessions s on s.operator_id = o.id
-- name: seen
select last_seen_at - created_at from pabal.operator_sessions
-- name: actions
select action from pabal.audit_log order by id
""")


@pytest.fixture
async def mina(hub: Hub) -> Operator:
    async with hub.transaction() as tx:
        return await add_operator(tx, "Mina", HORSE, Role.VIEWER)


async def enter(hub: Hub, name: str = "Mina", secret: str = HORSE) -> str:
    async with hub.autocommit() as tx:
        known = await find_operator_credentials(tx, name)
    checked = await authenticate_operator(known, secret)
    async with hub.transaction() as tx:
        return await create_operator_session(tx, checked, SOMEWHERE)


async def seen(hub: Hub, token: str, *, used: bool = True) -> OperatorSession | None:
    async with hub.autocommit() as tx:
        return await find_operator_session(tx, token, is_activity=used)


async def renewed(hub: Hub, token: str) -> str:
    session = await seen(hub, token)
    assert session is not None
    assert session.renewed_token is not None
    return session.renewed_token


async def turns(hub: Hub, token: str) -> bool:
    session = await seen(hub, token)
    assert session is not None
    return session.renewed_token is not None


async def actions(hub: Hub) -> list[str]:
    async with hub.autocommit() as tx:
        return await tx.column(ACTIONS)


async def test_a_session_identifies_the_operator_and_ends_at_sign_out(hub: Hub, mina: Operator) -> None:
    token = await enter(hub)

    found = await seen(hub, token)
    assert found is not None
    assert (found.id, found.name, found.role, found.renewed_token) == (mina.id, "Mina", "viewer", None)
    assert await seen(hub, token + "x") is None
    async with hub.transaction() as tx:
        assert await is_operator_session_active(tx, found.session_id)
        await sign_out_operator(tx, found, SOMEWHERE)
        assert not await is_operator_session_active(tx, found.session_id)
    assert await seen(hub, token) is None
    assert await actions(hub) == ["operator.added", "operator.signed_in", "operator.signed_out"]


async def test_password_and_cookie_are_stored_as_hashes(hub: Hub, mina: Operator, travel: Travel) -> None:
    first = await enter(hub)
    await travel(HOUR)
    second = await renewed(hub, first)

    async with hub.autocommit() as tx:
        stored = await tx.value(EVERYTHING)

    assert "Mina" in stored
    for secret in (first, second, HORSE):
        assert secret not in stored
        assert secret.encode().hex() not in stored


async def test_a_session_ends_after_twelve_hours_despite_activity(hub: Hub, mina: Operator, travel: Travel) -> None:
    token = await enter(hub)
    for _ in range(11):
        await travel(HOUR)
        token = await renewed(hub, token)

    await travel(59 * MINUTE)
    assert await seen(hub, token) is not None
    await travel(MINUTE)
    assert await seen(hub, token) is None


async def test_an_unused_session_ends_after_two_hours(hub: Hub, mina: Operator, travel: Travel) -> None:
    token = await enter(hub)
    await travel(119 * MINUTE)
    token = await renewed(hub, token)
    await travel(119 * MINUTE)
    last = await renewed(hub, token)

    await travel(121 * MINUTE)

    assert await seen(hub, last) is None
    assert await seen(hub, last) is None  # and the lookup has not extended it


async def test_a_page_that_refreshes_itself_is_not_activity(hub: Hub, mina: Operator, travel: Travel) -> None:
    token = await enter(hub)
    for _ in range(3):
        await travel(39 * MINUTE)
        session = await seen(hub, token, used=False)
        assert session is not None
        assert session.renewed_token is None  # nor does it rotate the cookie

    await travel(4 * MINUTE)
    assert await seen(hub, token, used=False) is None


async def test_the_last_activity_is_recorded_to_the_minute(hub: Hub, mina: Operator, travel: Travel) -> None:
    token = await enter(hub)
    await seen(hub, token)
    async with hub.autocommit() as tx:
        assert await tx.value(SEEN) == timedelta()

    await travel(5 * MINUTE)
    await seen(hub, token)
    async with hub.autocommit() as tx:
        assert await tx.value(SEEN) >= 5 * MINUTE


async def test_the_cookie_rotates_after_an_hour_and_the_previous_one_lasts_a_minute(
    hub: Hub, mina: Operator, travel: Travel
) -> None:
    first = await enter(hub)
    await travel(59 * MINUTE)
    assert not await turns(hub, first)
    await travel(MINUTE)

    second = await renewed(hub, first)

    assert second != first
    assert not await turns(hub, second)
    assert await renewed(hub, first) == second  # after a lost response, the same cookie is returned again
    await travel(2 * MINUTE)
    assert await seen(hub, second) is not None


async def test_concurrent_requests_with_the_old_cookie_get_the_same_new_one(
    hub: Hub, mina: Operator, travel: Travel
) -> None:
    first = await enter(hub)
    await travel(HOUR)

    many = await asyncio.gather(*(seen(hub, first) for _ in range(30)))

    assert all(many)
    given = {session.renewed_token for session in many if session and session.renewed_token}
    assert len(given) == 1
    [second] = given
    assert await seen(hub, second) is not None
    async with hub.autocommit() as tx:
        assert await tx.value(COUNT) == 1


async def test_a_late_use_of_a_replaced_cookie_ends_the_session(hub: Hub, mina: Operator, travel: Travel) -> None:
    stolen = await enter(hub)
    await travel(HOUR)
    second = await renewed(hub, stolen)

    await travel(MINUTE)

    assert await seen(hub, stolen) is None
    assert await seen(hub, second) is None
    assert (await actions(hub))[-1] == "operator.session_copied"


async def test_a_cookie_from_before_the_previous_one_is_ignored(hub: Hub, mina: Operator, travel: Travel) -> None:
    first = await enter(hub)
    await travel(HOUR)
    second = await renewed(hub, first)
    await travel(HOUR)
    third = await renewed(hub, second)

    assert await seen(hub, first) is None
    assert await seen(hub, third) is not None


async def test_the_next_cookie_cannot_be_derived_without_the_seed(hub: Hub, mina: Operator) -> None:
    assert derive_next_cookie("a cookie", b"a" * 32) != derive_next_cookie("a cookie", b"b" * 32)
    assert len(derive_next_cookie("a cookie", b"a" * 32)) == 43


async def test_signing_out_during_a_cookie_rotation_ends_the_session(hub: Hub, mina: Operator, travel: Travel) -> None:
    for _ in range(5):
        first = await enter(hub)
        await travel(HOUR)
        session = await seen(hub, first, used=False)
        assert session is not None

        async def leave(session: OperatorSession = session) -> None:
            async with hub.transaction() as tx:
                await sign_out_operator(tx, session, SOMEWHERE)

        *many, _ = await asyncio.gather(*(seen(hub, first) for _ in range(5)), leave())

        for token in {first, *(each.renewed_token for each in many if each and each.renewed_token)}:
            assert await seen(hub, token) is None


async def test_a_password_changed_during_the_check_starts_no_session(hub: Hub, mina: Operator) -> None:
    async with hub.autocommit() as tx:
        known = await authenticate_operator(await find_operator_credentials(tx, "Mina"), HORSE)
    async with hub.transaction() as tx:
        await set_operator_password(tx, "Mina", await hash_password("another one"), SOMEWHERE)

    with pytest.raises(Unauthenticated):
        async with hub.transaction() as tx:
            await create_operator_session(tx, known, SOMEWHERE)
    async with hub.autocommit() as tx:
        assert await tx.value(COUNT) == 0


async def test_a_concurrent_sign_in_and_password_change_leave_no_old_session(hub: Hub, mina: Operator) -> None:
    """Either the sign-in is refused, or its session is ended with the others."""
    old = HORSE
    for n in range(5):
        new = f"password {n}"
        async with hub.autocommit() as tx:
            known = await authenticate_operator(await find_operator_credentials(tx, "Mina"), old)
        fresh = await hash_password(new)

        async def begin(known: OperatorCredentials = known) -> None:
            async with hub.transaction() as tx:
                await create_operator_session(tx, known, SOMEWHERE)

        async def change(fresh: str = fresh) -> None:
            async with hub.transaction() as tx:
                await set_operator_password(tx, "Mina", fresh, SOMEWHERE)

        await asyncio.gather(begin(), begin(), change(), begin(), return_exceptions=True)
        async with hub.autocommit() as tx:
            assert await tx.value(COUNT) == 0
        old = new


async def test_only_ended_sessions_are_purged(hub: Hub, mina: Operator, travel: Travel) -> None:
    await enter(hub)
    await travel(HOUR)
    token = await enter(hub)
    await travel(HOUR + MINUTE)

    async with hub.autocommit() as tx:
        assert await purge_operator_sessions(tx, batch=10) == 1
        assert await purge_operator_sessions(tx, batch=10) == 0
    assert await seen(hub, token) is not None


async def test_an_operator_can_end_only_their_own_sessions(hub: Hub, mina: Operator) -> None:
    async with hub.transaction() as tx:
        await add_operator(tx, "Jun", HORSE, Role.ADMIN)
    mine, other, juns = await enter(hub), await enter(hub), await enter(hub, "Jun")
    me, jun = await seen(hub, mine), await seen(hub, juns)
    assert me is not None
    assert jun is not None

    async with hub.transaction() as tx:
        ids = {each.id for each in await list_operator_sessions(tx, mina.id)}
        assert len(ids) == 2
        for wrong in (jun.session_id, UUID(int=0)):
            with pytest.raises(NotFound):
                await end_operator_sessions(tx, me, [wrong], SOMEWHERE)
        assert await end_operator_sessions(tx, me, [*(ids - {me.session_id})], SOMEWHERE) == 1

    assert [await seen(hub, token) is not None for token in (mine, other, juns)] == [True, False, True]


async def test_a_wrong_name_and_a_wrong_password_look_the_same(hub: Hub, mina: Operator) -> None:
    async def refusal(name: str) -> tuple[str, float]:
        started = time.perf_counter()
        with pytest.raises(Unauthenticated) as refused:
            await enter(hub, name, "wrong horse")
        return str(refused.value), time.perf_counter() - started

    await refusal("nobody")  # warm-up
    pairs = [(await refusal("Mina"), await refusal("nobody")) for _ in range(5)]
    known, unknown = zip(*pairs, strict=True)

    assert {text for text, _ in known} == {text for text, _ in unknown}
    ratio = median(took for _, took in known) / median(took for _, took in unknown)
    assert 0.4 < ratio < 2.5
