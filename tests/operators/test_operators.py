import asyncio
from dataclasses import dataclass

import pytest

from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound, Unauthenticated
from pabal.db.queries import parse_queries
from pabal.hub import Hub
from pabal.operators.operators import (
    Operator,
    OperatorSession,
    Role,
    add_operator,
    disable_operator,
    enable_operator,
    ensure_first_operator,
    find_operator_credentials,
    list_operators,
    set_operator_password,
    set_operator_role,
)
from pabal.operators.password import hash_password, verify_password
from pabal.operators.sessions import authenticate_operator, create_operator_session, find_operator_session

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse"
BY = Actor("cli:root")
[AUDIT_ENTRIES] = parse_queries("""
-- name: audit_entries
select actor, action, subject, details::text from pabal.audit_log order by id
""")


@dataclass(frozen=True, slots=True)
class AuditRow:
    actor: str
    action: str
    subject: str
    details: str


async def add(hub: Hub, name: str, role: Role = Role.VIEWER) -> Operator:
    async with hub.transaction() as tx:
        return await add_operator(tx, name, await hash_password(PASSWORD), role, BY)


async def sign_in(hub: Hub, name: str, secret: str = PASSWORD) -> str:
    async with hub.transaction() as tx:
        credentials = await authenticate_operator(await find_operator_credentials(tx, name), secret)
        return await create_operator_session(tx, credentials, Actor(f"operator:{name}"))


async def find_session(hub: Hub, token: str) -> OperatorSession | None:
    async with hub.autocommit() as tx:
        return await find_operator_session(tx, token)


async def audit_rows(hub: Hub) -> list[AuditRow]:
    async with hub.autocommit() as tx:
        return await tx.all(AuditRow, AUDIT_ENTRIES)


async def test_the_first_operator_gets_the_configured_password_which_is_not_shown(hub: Hub) -> None:
    async with hub.transaction() as tx:
        assert await ensure_first_operator(tx, "configured password") is None

    assert await sign_in(hub, "admin", "configured password")


async def test_without_a_configured_password_one_is_generated_and_shown_once(hub: Hub) -> None:
    async with hub.transaction() as tx:
        password = await ensure_first_operator(tx, None)
        assert await ensure_first_operator(tx, None) is None

    assert password is not None
    assert len(password) >= 20
    assert await sign_in(hub, "admin", password)


async def test_names_are_unique_ignoring_case(hub: Hub) -> None:
    await add(hub, "Mina")

    with pytest.raises(Conflict, match="Operator mina already exists"):
        await add(hub, "mina")
    assert await sign_in(hub, "MINA")


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "<script>", "a\nb", "\x1b[31m", "a/b", ".", ".."])
async def test_an_invalid_name_is_refused(hub: Hub, name: str) -> None:
    with pytest.raises(Invalid, match="name: must be 1 to 64"):
        await add(hub, name)


@pytest.mark.parametrize("name", ["mina", "미나", "mina.kim@example.org", "x" * 64])
async def test_usual_names_are_accepted(hub: Hub, name: str) -> None:
    assert (await add(hub, name)).name == name


@pytest.mark.parametrize(("length", "valid"), [(0, False), (7, False), (8, True), (1000, True), (1001, False)])
async def test_a_password_has_8_to_1000_characters(length: int, *, valid: bool) -> None:
    if valid:
        assert await verify_password("가" * length, await hash_password("가" * length))
        return
    with pytest.raises(Invalid, match="password: must have 8 to 1,000 characters"):
        await hash_password("가" * length)


async def test_a_new_password_ends_every_session_and_invalidates_the_old_one(hub: Hub) -> None:
    await add(hub, "Mina")
    await add(hub, "Jun")
    tokens = [await sign_in(hub, "Mina"), await sign_in(hub, "mina"), await sign_in(hub, "Jun")]

    async with hub.transaction() as tx:
        await set_operator_password(tx, "mina", await hash_password("another one"), BY)

    assert [await find_session(hub, token) is not None for token in tokens] == [False, False, True]
    with pytest.raises(Unauthenticated):
        await sign_in(hub, "Mina")
    assert await sign_in(hub, "Mina", "another one")
    assert ("cli:root", "operator.password_changed", "Mina", '{"sessions": 2}') in [
        (row.actor, row.action, row.subject, row.details) for row in await audit_rows(hub)
    ]


async def test_disabling_an_operator_ends_their_sessions_for_good(hub: Hub) -> None:
    await add(hub, "Mina")
    token = await sign_in(hub, "Mina")

    async with hub.transaction() as tx:
        await disable_operator(tx, "Mina", BY)
    assert await find_session(hub, token) is None
    with pytest.raises(Unauthenticated):
        await sign_in(hub, "Mina")

    async with hub.transaction() as tx:
        await enable_operator(tx, "Mina", BY)
    assert await find_session(hub, token) is None
    assert await sign_in(hub, "Mina")


async def test_a_new_role_applies_to_the_next_request(hub: Hub) -> None:
    await add(hub, "Mina")
    token = await sign_in(hub, "Mina")

    async with hub.transaction() as tx:
        await set_operator_role(tx, "Mina", Role.ADMIN, BY)

    session = await find_session(hub, token)
    assert session is not None
    assert session.role == Role.ADMIN


async def test_the_last_enabled_admin_cannot_be_removed(hub: Hub) -> None:
    await add(hub, "one", Role.ADMIN)
    await add(hub, "two", Role.ADMIN)
    await add(hub, "viewer")
    async with hub.transaction() as tx:
        await disable_operator(tx, "two", BY)

    error = "one is the only enabled admin"
    with pytest.raises(Conflict, match=error):
        async with hub.transaction() as tx:
            await disable_operator(tx, "one", BY)
    with pytest.raises(Conflict, match=error):
        async with hub.transaction() as tx:
            await set_operator_role(tx, "one", Role.VIEWER, BY)
    async with hub.transaction() as tx:
        await disable_operator(tx, "viewer", BY)
        await disable_operator(tx, "two", BY)  # idempotent, and not audited again

    actions = [row.action for row in await audit_rows(hub)]
    assert actions == [*["operator.added"] * 3, "operator.disabled", "operator.disabled"]


async def test_two_admins_who_disable_each_other_concurrently_leave_one(hub: Hub) -> None:
    for number in range(4):
        await add(hub, f"admin{number}", Role.ADMIN)

    async def disable(name: str) -> bool:
        try:
            async with hub.transaction() as tx:
                await disable_operator(tx, name, BY)
        except Conflict:
            return False
        return True

    results = await asyncio.gather(*(disable(f"admin{number}") for number in range(4)))

    assert sorted(results) == [False, True, True, True]
    async with hub.autocommit() as tx:
        assert sum(operator.disabled_at is None for operator in await list_operators(tx)) == 1


async def test_an_unknown_operator_cannot_be_changed(hub: Hub) -> None:
    async with hub.transaction() as tx:
        for operation in (disable_operator, enable_operator):
            with pytest.raises(NotFound, match="No such operator: nosuch"):
                await operation(tx, "nosuch", BY)


async def test_a_damaged_hash_matches_no_password() -> None:
    assert not await verify_password("anything", "not an argon2 hash")
