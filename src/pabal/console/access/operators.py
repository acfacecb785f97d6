"""The operators of the console: add, change, disable and remove them."""

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Action, Form, Page, operator_actor
from pabal.console.pages import confirm_page, is_confirmed, redirect_with_flash, render_page, secret_page
from pabal.core.errors import Conflict, Invalid, NotFound, RequestError
from pabal.hub import Hub
from pabal.operators import operators
from pabal.operators.operators import (
    OperatorSession,
    Role,
    add_operator,
    disable_operator,
    enable_operator,
    find_operator,
    list_operators,
    remove_operator,
    set_operator_password,
    set_operator_role,
)
from pabal.operators.password import generate_password, hash_password
from pabal.web.errors import error_status

OPERATORS_PATH = "/console/operators"
OPERATOR_PATH = OPERATORS_PATH + "/{name}"
NO_FIELDS: Form = ImmutableMultiDict[str, str]()


async def operators_page(hub: Hub, request: Request, session: OperatorSession) -> Response:
    return await render_operators_page(hub, request, session)


async def render_operators_page(
    hub: Hub, request: Request, session: OperatorSession, error: RequestError | None = None, fields: Form = NO_FIELDS
) -> Response:
    """List the operators, with the form to add one. A rejected form is shown again with its error."""
    async with hub.autocommit() as tx:
        rows = await list_operators(tx)
    return render_page(
        request,
        "operators.html",
        status=error_status(type(error)) if error else 200,
        session=session,
        error=error,
        fields=fields,
        rows=rows,
        roles=tuple(Role),
        operators_path=OPERATORS_PATH,
    )


async def add_operator_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Add an operator and show the generated password once."""
    password = generate_password()
    try:
        role = read_role(fields)
        password_hash = await hash_password(password)
        async with hub.transaction() as tx:
            await add_operator(
                tx, fields.get("name", "").strip(), password_hash, role, operator_actor(request, session)
            )
    except (Invalid, Conflict) as error:
        return await render_operators_page(hub, request, session, error, fields)
    return secret_page(request, session, "operators.password.new", password, OPERATORS_PATH)


async def set_operator_role_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    async with hub.transaction() as tx:
        await set_operator_role(tx, read_operator_name(request), read_role(fields), operator_actor(request, session))
    return redirect_with_flash(OPERATORS_PATH, "operators.role.changed")


async def reset_password_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Replace the password by a generated one, after confirmation: all sessions of the operator end."""
    name = read_operator_name(request)
    if not is_confirmed(fields):
        return await confirm_operator_page(hub, request, session, fields, "operators.password.confirm")
    password = generate_password()
    password_hash = await hash_password(password)
    async with hub.transaction() as tx:
        await set_operator_password(tx, name, password_hash, operator_actor(request, session))
    return secret_page(request, session, "operators.password.new", password, OPERATORS_PATH)


async def disable_operator_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    if not is_confirmed(fields):
        return await confirm_operator_page(hub, request, session, fields, "operators.disable.confirm")
    async with hub.transaction() as tx:
        await disable_operator(tx, read_operator_name(request), operator_actor(request, session))
    return redirect_with_flash(OPERATORS_PATH, "operators.disable.done")


async def enable_operator_action(hub: Hub, request: Request, session: OperatorSession, _fields: Form) -> Response:
    async with hub.transaction() as tx:
        await enable_operator(tx, read_operator_name(request), operator_actor(request, session))
    return redirect_with_flash(OPERATORS_PATH, "operators.enable.done")


async def remove_operator_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    if not is_confirmed(fields):
        return await confirm_operator_page(hub, request, session, fields, "operators.remove.confirm")
    async with hub.transaction() as tx:
        await remove_operator(tx, read_operator_name(request), operator_actor(request, session))
    return redirect_with_flash(OPERATORS_PATH, "operators.remove.done")


async def confirm_operator_page(
    hub: Hub, request: Request, session: OperatorSession, fields: Form, text_id: str
) -> Response:
    """Ask before an action that ends the sessions of an operator."""
    async with hub.autocommit() as tx:
        operator = await find_operator(tx, read_operator_name(request))
    return confirm_page(
        request, session, text_id=text_id, count=1, fields=fields, return_url=OPERATORS_PATH, name=operator.name
    )


def read_operator_name(request: Request) -> str:
    """Return the operator name of the path, if it is a valid one."""
    name: str = request.path_params["name"]
    if not operators.OPERATOR_NAME.fullmatch(name):
        raise NotFound(f"No such operator: {name[:64]}")
    return name


def read_role(fields: Form) -> Role:
    try:
        return Role(fields.get("role", ""))
    except ValueError:
        raise Invalid.of_field("role", f"must be one of {', '.join(Role)}") from None


PAGES = (
    Page(OPERATORS_PATH, operators_page),
    Action(OPERATORS_PATH, add_operator_action),
    Action(f"{OPERATOR_PATH}/role", set_operator_role_action),
    Action(f"{OPERATOR_PATH}/password", reset_password_action),
    Action(f"{OPERATOR_PATH}/disable", disable_operator_action),
    Action(f"{OPERATOR_PATH}/enable", enable_operator_action),
    Action(f"{OPERATOR_PATH}/remove", remove_operator_action),
)
