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

PASSWORD = "correct horse"
CLIENT = Actor("operator:Mina", "10.0.0.9", "a browser")
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
Travel = Callable[[timedelta], Awaitable[None]]

COUNT, ALL_TEXT, LAST_SEEN, ACTIONS = parse_queries("""
-- name: count
select count(*) from pabal.operator_sessions
-- name: all_text
select string_agg(o::text || coalesce(s::text, ''), ' ')
from pabal.operators o left join pabal.operator_sessions s on s.operator_id = o.id
-- name: last_seen
select last_seen_at - created_at from pabal.operator_sessions
-- name: actions
select action from pabal.audit_log order by id
""")


@pytest.fixture
async def mina(hub: Hub) -> Operator:
    async with hub.transaction() as tx:
        return await add_operator(tx, "Mina", await hash_password(PASSWORD), Role.VIEWER)


async def sign_in(hub: Hub, name: str = "Mina", secret: str = PASSWORD) -> str:
    async with hub.autocommit() as tx:
        credentials = await find_operator_credentials(tx, name)
    authenticated = await authenticate_operator(credentials, secret)
    async with hub.transaction() as tx:
        return await create_operator_session(tx, authenticated, CLIENT)


async def find_session(hub: Hub, token: str, *, is_activity: bool = True) -> OperatorSession | None:
    async with hub.autocommit() as tx:
        return await find_operator_session(tx, token, is_activity=is_activity)


async def renew(hub: Hub, token: str) -> str:
    session = await find_session(hub, token)
    assert session is not None
    assert session.renewed_token is not None
    return session.renewed_token


async def is_renewed(hub: Hub, token: str) -> bool:
    session = await find_session(hub, token)
    assert session is not None
    return session.renewed_token is not None


async def audit_actions(hub: Hub) -> list[str]:
    async with hub.autocommit() as tx:
        return await tx.column(ACTIONS)


async def test_a_session_identifies_the_operator_and_ends_at_sign_out(hub: Hub, mina: Operator) -> None:
    token = await sign_in(hub)

    session = await find_session(hub, token)
    assert session is not None
    assert (session.id, session.name, session.role, session.renewed_token) == (mina.id, "Mina", "viewer", None)
    assert await find_session(hub, token + "x") is None
    async with hub.transaction() as tx:
        assert await is_operator_session_active(tx, session.session_id)
        await sign_out_operator(tx, session, CLIENT)
        assert not await is_operator_session_active(tx, session.session_id)
    assert await find_session(hub, token) is None
    assert await audit_actions(hub) == ["operator.added", "operator.signed_in", "operator.signed_out"]


async def test_password_and_cookie_are_stored_as_hashes(hub: Hub, mina: Operator, travel: Travel) -> None:
    first = await sign_in(hub)
    await travel(HOUR)
    second = await renew(hub, first)

    async with hub.autocommit() as tx:
        text = await tx.value(ALL_TEXT)

    assert "Mina" in text
    for secret in (first, second, PASSWORD):
        assert secret not in text
        assert secret.encode().hex() not in text


async def test_a_session_ends_after_twelve_hours_despite_activity(hub: Hub, mina: Operator, travel: Travel) -> None:
    token = await sign_in(hub)
    for _ in range(11):
        await travel(HOUR)
        token = await renew(hub, token)

    await travel(59 * MINUTE)
    assert await find_session(hub, token) is not None
    await travel(MINUTE)
    assert await find_session(hub, token) is None


async def test_an_unused_session_ends_after_two_hours(hub: Hub, mina: Operator, travel: Travel) -> None:
    token = await sign_in(hub)
    await travel(119 * MINUTE)
    token = await renew(hub, token)
    await travel(119 * MINUTE)
    last = await renew(hub, token)

    await travel(121 * MINUTE)

    assert await find_session(hub, last) is None
    assert await find_session(hub, last) is None  # and the lookup has not extended it


async def test_a_page_that_refreshes_itself_is_not_activity(hub: Hub, mina: Operator, travel: Travel) -> None:
    token = await sign_in(hub)
    for _ in range(3):
        await travel(39 * MINUTE)
        session = await find_session(hub, token, is_activity=False)
        assert session is not None
        assert session.renewed_token is None  # nor does it rotate the cookie

    await travel(4 * MINUTE)
    assert await find_session(hub, token, is_activity=False) is None


async def test_the_last_activity_is_recorded_to_the_minute(hub: Hub, mina: Operator, travel: Travel) -> None:
    token = await sign_in(hub)
    await find_session(hub, token)
    async with hub.autocommit() as tx:
        assert await tx.value(LAST_SEEN) == timedelta()

    await travel(5 * MINUTE)
    await find_session(hub, token)
    async with hub.autocommit() as tx:
        assert await tx.value(LAST_SEEN) >= 5 * MINUTE


async def test_the_cookie_rotates_after_an_hour_and_the_previous_one_lasts_a_minute(
    hub: Hub, mina: Operator, travel: Travel
) -> None:
    first = await sign_in(hub)
    await travel(59 * MINUTE)
    assert not await is_renewed(hub, first)
    await travel(MINUTE)

    second = await renew(hub, first)

    assert second != first
    assert not await is_renewed(hub, second)
    assert await renew(hub, first) == second  # after a lost response, the same cookie is returned again
    await travel(2 * MINUTE)
    assert await find_session(hub, second) is not None


async def test_concurrent_requests_with_the_old_cookie_get_the_same_new_one(
    hub: Hub, mina: Operator, travel: Travel
) -> None:
    first = await sign_in(hub)
    await travel(HOUR)

    sessions = await asyncio.gather(*(find_session(hub, first) for _ in range(30)))

    assert all(sessions)
    new_tokens = {session.renewed_token for session in sessions if session and session.renewed_token}
    assert len(new_tokens) == 1
    [second] = new_tokens
    assert await find_session(hub, second) is not None
    async with hub.autocommit() as tx:
        assert await tx.value(COUNT) == 1


async def test_a_late_use_of_a_replaced_cookie_ends_the_session(hub: Hub, mina: Operator, travel: Travel) -> None:
    stolen = await sign_in(hub)
    await travel(HOUR)
    second = await renew(hub, stolen)

    await travel(MINUTE)

    assert await find_session(hub, stolen) is None
    assert await find_session(hub, second) is None
    assert (await audit_actions(hub))[-1] == "operator.session_copied"


async def test_a_cookie_from_before_the_previous_one_is_ignored(hub: Hub, mina: Operator, travel: Travel) -> None:
    first = await sign_in(hub)
    await travel(HOUR)
    second = await renew(hub, first)
    await travel(HOUR)
    third = await renew(hub, second)

    assert await find_session(hub, first) is None
    assert await find_session(hub, third) is not None


async def test_the_next_cookie_cannot_be_derived_without_the_seed(hub: Hub, mina: Operator) -> None:
    assert derive_next_cookie("a cookie", b"a" * 32) != derive_next_cookie("a cookie", b"b" * 32)
    assert len(derive_next_cookie("a cookie", b"a" * 32)) == 43


async def test_signing_out_during_a_cookie_rotation_ends_the_session(hub: Hub, mina: Operator, travel: Travel) -> None:
    for _ in range(5):
        first = await sign_in(hub)
        await travel(HOUR)
        session = await find_session(hub, first, is_activity=False)
        assert session is not None

        async def sign_out(session: OperatorSession = session) -> None:
            async with hub.transaction() as tx:
                await sign_out_operator(tx, session, CLIENT)

        *sessions, _ = await asyncio.gather(*(find_session(hub, first) for _ in range(5)), sign_out())

        for token in {first, *(found.renewed_token for found in sessions if found and found.renewed_token)}:
            assert await find_session(hub, token) is None


async def test_a_password_changed_during_the_check_starts_no_session(hub: Hub, mina: Operator) -> None:
    async with hub.autocommit() as tx:
        credentials = await authenticate_operator(await find_operator_credentials(tx, "Mina"), PASSWORD)
    async with hub.transaction() as tx:
        await set_operator_password(tx, "Mina", await hash_password("another one"), CLIENT)

    with pytest.raises(Unauthenticated):
        async with hub.transaction() as tx:
            await create_operator_session(tx, credentials, CLIENT)
    async with hub.autocommit() as tx:
        assert await tx.value(COUNT) == 0


async def test_a_concurrent_sign_in_and_password_change_leave_no_old_session(hub: Hub, mina: Operator) -> None:
    """Either the sign-in is refused, or its session is ended with the others."""
    old_password = PASSWORD
    for number in range(5):
        new_password = f"password {number}"
        async with hub.autocommit() as tx:
            credentials = await authenticate_operator(await find_operator_credentials(tx, "Mina"), old_password)
        password_hash = await hash_password(new_password)

        async def start_session(credentials: OperatorCredentials = credentials) -> None:
            async with hub.transaction() as tx:
                await create_operator_session(tx, credentials, CLIENT)

        async def change(password_hash: str = password_hash) -> None:
            async with hub.transaction() as tx:
                await set_operator_password(tx, "Mina", password_hash, CLIENT)

        await asyncio.gather(start_session(), start_session(), change(), start_session(), return_exceptions=True)
        async with hub.autocommit() as tx:
            assert await tx.value(COUNT) == 0
        old_password = new_password


async def test_only_ended_sessions_are_purged(hub: Hub, mina: Operator, travel: Travel) -> None:
    await sign_in(hub)
    await travel(HOUR)
    token = await sign_in(hub)
    await travel(HOUR + MINUTE)

    async with hub.autocommit() as tx:
        assert await purge_operator_sessions(tx, batch=10) == 1
        assert await purge_operator_sessions(tx, batch=10) == 0
    assert await find_session(hub, token) is not None


async def test_an_operator_can_end_only_their_own_sessions(hub: Hub, mina: Operator) -> None:
    async with hub.transaction() as tx:
        await add_operator(tx, "Jun", await hash_password(PASSWORD), Role.ADMIN)
    own_token, other_token, jun_token = await sign_in(hub), await sign_in(hub), await sign_in(hub, "Jun")
    own_session, jun_session = await find_session(hub, own_token), await find_session(hub, jun_token)
    assert own_session is not None
    assert jun_session is not None

    async with hub.transaction() as tx:
        ids = {session.id for session in await list_operator_sessions(tx, mina.id)}
        assert len(ids) == 2
        for session_id in (jun_session.session_id, UUID(int=0)):
            with pytest.raises(NotFound):
                await end_operator_sessions(tx, own_session, [session_id], CLIENT)
        assert await end_operator_sessions(tx, own_session, [*(ids - {own_session.session_id})], CLIENT) == 1

    assert [await find_session(hub, token) is not None for token in (own_token, other_token, jun_token)] == [
        True,
        False,
        True,
    ]


async def test_a_wrong_name_and_a_wrong_password_look_the_same(hub: Hub, mina: Operator) -> None:
    async def refusal(name: str) -> tuple[str, float]:
        started = time.perf_counter()
        with pytest.raises(Unauthenticated) as error:
            await sign_in(hub, name, "wrong horse")
        return str(error.value), time.perf_counter() - started

    await refusal("nosuch")  # warm-up
    pairs = [(await refusal("Mina"), await refusal("nosuch")) for _ in range(5)]
    known, unknown = zip(*pairs, strict=True)

    assert {text for text, _ in known} == {text for text, _ in unknown}
    ratio = median(seconds for _, seconds in known) / median(seconds for _, seconds in unknown)
    assert 0.4 < ratio < 2.5
