import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from statistics import median

import pytest

from pabal.core.errors import Unauthenticated
from pabal.db.queries import parse
from pabal.operators import operators, password
from pabal.operators.operators import Role
from pabal.wiring import Hub

pytestmark = pytest.mark.anyio

SESSIONS, EVERYTHING, DISABLE, SEEN = parse("""
-- name: sessions
select count(*) from pabal.operator_sessions
-- name: everything
select string_agg(o::text || coalesce(s::text, ''), ' ')
from pabal.operators o left join pabal.operator_sessions s on s.operator_id = o.id
-- name: disable
update pabal.operators set disabled_at = pabal.now() where name = :name
-- name: seen
select last_seen_at - created_at from pabal.operator_sessions
""")


@pytest.fixture
async def mina(hub: Hub) -> operators.Operator:
    async with hub.transaction() as tx:
        added = await operators.add(tx, "Mina", "correct horse", Role.VIEWER)
    assert added is not None
    return added


async def enter(hub: Hub, name: str, secret: str) -> str:
    async with hub.transaction() as tx:
        return await operators.sign_in(tx, name, secret, client_ip="10.0.0.9", user_agent="a browser")


async def test_the_first_operator_gets_the_password_said_and_it_is_not_shown(hub: Hub) -> None:
    async with hub.transaction() as tx:
        assert await operators.ensure_first(tx, "said by settings") is None

    assert await enter(hub, "admin", "said by settings")


async def test_without_a_said_one_a_password_is_made_and_shown_once(hub: Hub) -> None:
    async with hub.transaction() as tx:
        made = await operators.ensure_first(tx, None)
        assert await operators.ensure_first(tx, None) is None

    assert made is not None
    assert len(made) >= 20
    assert await enter(hub, "admin", made)


async def test_a_name_is_taken_whatever_its_case(hub: Hub, mina: operators.Operator) -> None:
    async with hub.transaction() as tx:
        assert await operators.add(tx, "mina", "another password", Role.ADMIN) is None

    assert await enter(hub, "MINA", "correct horse")


async def test_a_session_says_who_and_ends_at_sign_out(hub: Hub, mina: operators.Operator) -> None:
    token = await enter(hub, "Mina", "correct horse")

    async with hub.autocommit() as tx:
        found = await operators.session(tx, token)
        assert found is not None
        assert (found.id, found.name, found.role) == (mina.id, "Mina", "viewer")
        assert await operators.session(tx, token + "x") is None
        await operators.sign_out(tx, token)
        assert await operators.session(tx, token) is None


async def test_neither_password_nor_token_is_stored_as_it_is(hub: Hub, mina: operators.Operator) -> None:
    token = await enter(hub, "Mina", "correct horse")

    async with hub.autocommit() as tx:
        stored = await tx.value(EVERYTHING)

    assert "Mina" in stored
    assert token not in stored
    assert token.encode().hex() not in stored
    assert "correct horse" not in stored


async def test_a_session_expires_and_is_swept(
    hub: Hub, mina: operators.Operator, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    token = await enter(hub, "Mina", "correct horse")

    await travel(operators.SESSION_LIFE - timedelta(minutes=1))
    async with hub.autocommit() as tx:
        assert await operators.session(tx, token) is not None
        assert await operators.sweep(tx, batch=10) == 0

    await travel(timedelta(minutes=2))
    async with hub.autocommit() as tx:
        assert await operators.session(tx, token) is None
        assert await operators.sweep(tx, batch=10) == 1
        assert await tx.value(SESSIONS) == 0


async def test_when_somebody_was_last_seen_is_kept_to_the_minute(
    hub: Hub, mina: operators.Operator, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    token = await enter(hub, "Mina", "correct horse")
    async with hub.autocommit() as tx:
        await operators.session(tx, token)
        assert await tx.value(SEEN) == timedelta()

    await travel(timedelta(minutes=5))
    async with hub.autocommit() as tx:
        await operators.session(tx, token)
        assert await tx.value(SEEN) >= timedelta(minutes=5)


async def test_a_disabled_operator_is_out_at_once_and_stays_out(hub: Hub, mina: operators.Operator) -> None:
    token = await enter(hub, "Mina", "correct horse")

    async with hub.autocommit() as tx:
        await tx.run(DISABLE, name="Mina")
        assert await operators.session(tx, token) is None
    with pytest.raises(Unauthenticated):
        await enter(hub, "Mina", "correct horse")


async def test_a_wrong_name_and_a_wrong_password_cannot_be_told_apart(hub: Hub, mina: operators.Operator) -> None:
    async def refusal(name: str) -> tuple[str, float]:
        started = time.perf_counter()
        with pytest.raises(Unauthenticated) as refused:
            await enter(hub, name, "wrong horse")
        return str(refused.value), time.perf_counter() - started

    await refusal("nobody")  # whatever the first one has to prepare
    pairs = [(await refusal("Mina"), await refusal("nobody")) for _ in range(5)]
    known, unknown = zip(*pairs, strict=True)

    assert {text for text, _ in known} == {text for text, _ in unknown}
    ratio = median(took for _, took in known) / median(took for _, took in unknown)
    assert 0.4 < ratio < 2.5


async def test_a_broken_hash_lets_nobody_in() -> None:
    assert not await password.fits("anything", "not an argon2 hash")
