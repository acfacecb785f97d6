"""Rotate the secret of a service and revoke its tokens."""

from datetime import timedelta
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pabal.console.access.guards import Action, Form, operator_actor
from pabal.console.pages import (
    confirm_page,
    is_confirmed,
    is_count_confirmed,
    redirect_with_flash,
    secret_page,
)
from pabal.console.services.paths import SERVICES_PATH, read_service_name
from pabal.core.errors import Invalid
from pabal.hub import Hub
from pabal.operators.operators import OperatorSession
from pabal.tokens.explain import revoke_service_family
from pabal.tokens.revoke import list_live_family_ids, revoke_families
from pabal.tokens.services import (
    ServiceSecret,
    find_service,
    lock_live_secrets,
    rotate_service_secret,
)

OVERLAPS = {"7d": timedelta(days=7), "1d": timedelta(days=1), "1h": timedelta(hours=1), "0": timedelta()}
"""How long the previous secret keeps working after a rotation."""


async def rotate_service_secret_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Create a new secret, if the newest one is still the one the page showed: a form sent twice creates one."""
    name = read_service_name(request)
    return_url, overlap = f"{SERVICES_PATH}/{name}", OVERLAPS.get(fields.get("overlap", ""))
    if overlap is None:
        raise Invalid.of_field("overlap", f"must be one of {', '.join(OVERLAPS)}")
    async with hub.transaction() as tx:
        secrets = await lock_live_secrets(tx, name)
        if fields.get("newest") != newest_secret_id(secrets):
            return redirect_with_flash(return_url, "services.secret.changed")
        if not overlap and not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="services.secret.confirm_revoke",
                count=len(secrets),
                fields=fields,
                return_url=return_url,
            )
        secret = await rotate_service_secret(tx, name, operator_actor(request, session), overlap=overlap)
    return secret_page(request, session, "services.secret.new", secret, return_url)


async def revoke_token_family_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    name = read_service_name(request)
    family_id: UUID = request.path_params["id"]
    if not is_count_confirmed(fields, 1):
        return confirm_page(
            request,
            session,
            text_id="services.family.confirm_revoke",
            count=1,
            fields=fields,
            return_url=f"{SERVICES_PATH}/{name}",
            name=name,
        )
    async with hub.transaction() as tx:
        await revoke_service_family(tx, name, family_id, operator_actor(request, session))
    return redirect_with_flash(f"{SERVICES_PATH}/{name}", "services.family.revoked", count=1)


async def revoke_token_families_action(hub: Hub, request: Request, session: OperatorSession, fields: Form) -> Response:
    """Revoke all tokens of a service."""
    name = read_service_name(request)
    return_url = f"{SERVICES_PATH}/{name}"
    async with hub.transaction() as tx:
        await find_service(tx, name)
        family_ids = await list_live_family_ids(tx, name)
        if not is_confirmed(fields):
            return confirm_page(
                request,
                session,
                text_id="services.family.confirm_revoke",
                count=len(family_ids),
                fields=fields,
                return_url=return_url,
                name=name,
            )
        revoked = await revoke_families(tx, family_ids, operator_actor(request, session))
    return redirect_with_flash(return_url, "services.family.revoked", count=revoked)


def newest_secret_id(secrets: list[ServiceSecret]) -> str:
    return str(secrets[0].id) if secrets else "none"


PAGES = (
    Action(SERVICES_PATH + "/{name}/rotate", rotate_service_secret_action),
    Action(SERVICES_PATH + "/{name}/revoke", revoke_token_families_action),
    Action(SERVICES_PATH + "/{name}/families/{id:uuid}/revoke", revoke_token_family_action),
)
