# ruff: noqa: INP001  # a program, not a package
"""Carry events into a cell: receive the signed pushes of another cell's hub, and publish each event here, once.

Run one for each direction: `uvicorn bridge:app`. A push is answered after the event is durable here, so an event is
neither lost (the other hub tries again) nor published twice (its id is the idempotency key, for 24 hours).
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pabal.client import ApiError, AsyncClient, HubUnavailableError, WebhookVerificationError, verify_webhook

CELL_PREFIX = "cell_"
"""Services with this prefix stand for another cell."""
COPIED_FIELDS = ("priority", "max_retries", "ordering_key", "traceparent")

MAX_BODY_BYTES = 1_000_000
"""A push is smaller: the payload of an event has at most 256 KiB."""


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    """BRIDGE_SERVICE is the service that stands for the other cell here, for example cell_a in cell b."""
    address, service, secret = (os.environ[f"BRIDGE_{name}"] for name in ("HUB", "SERVICE", "SERVICE_SECRET"))
    async with AsyncClient(address, service, secret) as app.state.client:
        yield


async def receive_push(request: Request) -> Response:
    secrets = os.environ["BRIDGE_WEBHOOK_SECRETS"].split(",")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            return PlainTextResponse("the body is larger than any push", 413)
    try:
        event = verify_webhook(secrets, request.headers, bytes(body))
    except WebhookVerificationError as error:
        return PlainTextResponse(str(error), 401)
    if event["source_service"].startswith(CELL_PREFIX):  # it came from a cell, so it has crossed already
        return Response(status_code=204)
    try:
        await request.app.state.client.publish(event["event_type"], event["payload"], **publish_options(event))
    except HubUnavailableError:
        return PlainTextResponse("the hub of this cell is not available", 503)
    except ApiError as error:  # the other hub keeps the event, and makes it a dead letter after its retries
        return PlainTextResponse(str(error), 502)
    return Response(status_code=204)


def publish_options(event: dict[str, Any]) -> dict[str, Any]:
    """The options of an event here. One that was pushed to a cell's own service is a broadcast."""
    options = {name: event[name] for name in COPIED_FIELDS if event.get(name) is not None}
    options["idempotency_key"] = event["origin_id"]
    options["correlation_id"] = event.get("correlation_id") or event["origin_id"]
    if not event["target_service"].startswith(CELL_PREFIX):
        options["target"] = event["target_service"]
    return options


app = Starlette(routes=[Route("/bridge", receive_push, methods=["POST"])], lifespan=lifespan)
