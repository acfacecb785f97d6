"""Operators: add, change, disable and remove the users of the console."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Self

import msgspec

from pabal.core.errors import Conflict, NotFound
from pabal.hub import Hub
from pabal.operators.operators import (
    OperatorSummary,
    Role,
    RoleValue,
    add_operator,
    disable_operator,
    enable_operator,
    find_operator,
    list_operators,
    remove_operator,
    set_operator_password,
    set_operator_role,
)
from pabal.operators.password import MAX_PASSWORD_LENGTH, generate_password, hash_password
from pabal.settings import MIN_PASSWORD_LENGTH
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, ResponseBody, Route

OperatorName = Annotated[str, msgspec.Meta(pattern=r"^(?!\.+$)[\w.@+-]{1,64}$(?!\n)")]
OperatorPassword = Annotated[str, msgspec.Meta(min_length=MIN_PASSWORD_LENGTH, max_length=MAX_PASSWORD_LENGTH)]


class OperatorBody(RequestBody, frozen=True, kw_only=True):
    """An operator to add. Without a password, one is generated and shown in the response."""

    name: OperatorName
    role: RoleValue = "viewer"
    password: OperatorPassword | None = None

    def __repr__(self) -> str:
        return f"OperatorBody({self.name!r})"


class OperatorPatchBody(RequestBody, frozen=True, kw_only=True):
    """The new role."""

    role: RoleValue


class OperatorPasswordBody(RequestBody, frozen=True, kw_only=True):
    """The new password. Without one, a password is generated and shown in the response."""

    password: OperatorPassword | None = None

    def __repr__(self) -> str:
        return "OperatorPasswordBody(…)"


class OperatorView(ResponseBody, frozen=True, kw_only=True):
    """An operator."""

    name: str
    role: RoleValue
    created_at: datetime
    disabled_at: datetime | None
    last_signed_in_at: datetime | None

    @classmethod
    def of(cls, operator: OperatorSummary) -> Self:
        return cls(**operator_fields(operator))


class OperatorWithPassword(OperatorView, frozen=True, kw_only=True):
    """An operator. `password` is shown only once, and only if it was generated."""

    password: str | None

    def __repr__(self) -> str:
        return f"OperatorWithPassword({self.name!r})"


class OperatorPage(ResponseBody, frozen=True):
    items: list[OperatorView]
    cursor: str | None = None


async def get_operators(hub: Hub) -> OperatorPage:
    """List the operators by name, on one page."""
    async with hub.autocommit() as tx:
        return OperatorPage([OperatorView.of(row) for row in await list_operators(tx)])


async def post_operator(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, body: OperatorBody
) -> OperatorWithPassword:
    """Add an operator, who may sign in to the console at once."""
    generated = None if body.password else generate_password()
    password_hash = await hash_password(body.password or generated or "")
    async with hub.transaction() as tx:
        await add_operator(tx, body.name, password_hash, Role(body.role), context.actor(caller.service))
        operator = await find_operator(tx, body.name)
    return OperatorWithPassword(**operator_fields(operator), password=generated)


async def get_operator(hub: Hub, name: OperatorName) -> OperatorView:
    """Get an operator."""
    async with hub.autocommit() as tx:
        return OperatorView.of(await find_operator(tx, name))


async def patch_operator(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, name: OperatorName, body: OperatorPatchBody
) -> OperatorView:
    """Change an operator's role, from their next request on. The last enabled admin stays one."""
    async with hub.transaction() as tx:
        await set_operator_role(tx, name, Role(body.role), context.actor(caller.service))
        return OperatorView.of(await find_operator(tx, name))


async def post_operator_password(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, name: OperatorName, body: OperatorPasswordBody
) -> OperatorWithPassword:
    """Change an operator's password and end their sessions."""
    generated = None if body.password else generate_password()
    password_hash = await hash_password(body.password or generated or "")
    async with hub.transaction() as tx:
        await set_operator_password(tx, name, password_hash, context.actor(caller.service))
        operator = await find_operator(tx, name)
    return OperatorWithPassword(**operator_fields(operator), password=generated)


async def post_operator_disable(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, name: OperatorName
) -> OperatorView:
    """Disable an operator and end their sessions. The last enabled admin stays enabled."""
    async with hub.transaction() as tx:
        await disable_operator(tx, name, context.actor(caller.service))
        return OperatorView.of(await find_operator(tx, name))


async def post_operator_enable(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, name: OperatorName
) -> OperatorView:
    """Enable a disabled operator. The password is unchanged."""
    async with hub.transaction() as tx:
        await enable_operator(tx, name, context.actor(caller.service))
        return OperatorView.of(await find_operator(tx, name))


async def delete_operator(hub: Hub, context: RequestContext, caller: AuthenticatedService, name: OperatorName) -> None:
    """Remove an operator and end their sessions. The audit log keeps the name. The last enabled admin stays."""
    async with hub.transaction() as tx:
        await remove_operator(tx, name, context.actor(caller.service))


def operator_fields(operator: OperatorSummary) -> dict[str, Any]:
    fields = asdict(operator)
    return {name: fields[name] for name in OperatorView.__struct_fields__}


OPERATOR_PATH = "/v1/operators/{name}"
ROUTES = tuple(
    Route(
        method,
        path,
        handler,
        permission=Permission.MANAGE,
        status=status,
        may_raise=may_raise,
        tag="operators",
    )
    for method, path, handler, status, may_raise in (
        ("GET", "/v1/operators", get_operators, 200, ()),
        ("POST", "/v1/operators", post_operator, 201, (Conflict,)),
        ("GET", OPERATOR_PATH, get_operator, 200, (NotFound,)),
        ("PATCH", OPERATOR_PATH, patch_operator, 200, (NotFound, Conflict)),
        ("DELETE", OPERATOR_PATH, delete_operator, 204, (NotFound, Conflict)),
        ("POST", f"{OPERATOR_PATH}/password", post_operator_password, 200, (NotFound, Conflict)),
        ("POST", f"{OPERATOR_PATH}/disable", post_operator_disable, 200, (NotFound, Conflict)),
        ("POST", f"{OPERATOR_PATH}/enable", post_operator_enable, 200, (NotFound,)),
    )
)
