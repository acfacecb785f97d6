"""The API calls for notifications, dead letters and tokens."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import msgspec

from pabal_client.errors import ERRORS_BY_STATUS, ApiError, HubUnavailableError
from pabal_client.options import HttpNotifyOptions, check_options
from pabal_client.requests import ResultPage, fit_batch, get_flow, post_flow
from pabal_client.transport import (
    Flow,
    SendRequest,
    ServiceCredentials,
    call_flow,
    decode_response,
    raise_for_response,
    retry_flow,
)

MAX_NOTIFICATIONS = 500
"""Notifications per request."""


class AcceptedNotification(msgspec.Struct, frozen=True):
    """A stored notification: pending, or suppressed with a reason."""

    id: UUID
    state: str
    scheduled_at: datetime
    created_at: datetime
    reason: str | None = None


class BatchNotifyItem(msgspec.Struct, frozen=True):
    """The result for one notification of a list: status 202 or 200 with its id, or an error."""

    status: int
    id: UUID | None = None
    state: str | None = None
    reason: str | None = None
    code: str | None = None
    detail: str | None = None

    @property
    def error(self) -> ApiError:
        """The error of a notification without an id."""
        return ERRORS_BY_STATUS.get(self.status, ApiError)(
            self.status, self.code or "refused", self.detail or "no reason given"
        )


class ReplayedEvent(msgspec.Struct, frozen=True):
    event_id: UUID


class ReplayedCount(msgspec.Struct, frozen=True):
    replayed: int


# Notifications


def encode_notification(
    recipient_type: str,
    recipient_id: str,
    template_key: str,
    payload: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> msgspec.Raw:
    """Encode a notification. It gets an idempotency key, so that sending it twice requests it once."""
    check_options("notify", options, HttpNotifyOptions)
    return encode_notification_fields(
        {
            **options,
            "recipient_type": recipient_type,
            "recipient_id": recipient_id,
            "template_key": template_key,
            "payload": payload,
        }
    )


def encode_notification_fields(fields: Mapping[str, Any]) -> msgspec.Raw:
    given = {name: value for name, value in fields.items() if value is not None}
    return msgspec.Raw(msgspec.json.encode({"idempotency_key": str(uuid4()), **given}))


def notify_flow(credentials: ServiceCredentials, body: msgspec.Raw) -> Flow[AcceptedNotification]:
    return post_flow(credentials, "/v1/notifications", body, AcceptedNotification)


def notify_many_flow(
    credentials: ServiceCredentials, notifications: Sequence[Mapping[str, Any]]
) -> Flow[list[BatchNotifyItem]]:
    """Request notifications in this order, as many per request as fit."""
    bodies = [encode_notification_fields(notification) for notification in notifications]
    results: list[BatchNotifyItem] = []
    while len(results) < len(bodies):
        batch = fit_batch(bodies[len(results) : len(results) + MAX_NOTIFICATIONS])
        items = yield from post_flow(credentials, "/v1/notifications", batch, list[BatchNotifyItem])
        if len(items) != len(batch):
            raise HubUnavailableError(f"sent {len(batch)} notifications, got {len(items)} results")
        results += items
    return results


def list_notifications_flow(credentials: ServiceCredentials, query: Mapping[str, Any]) -> Flow[ResultPage]:
    return get_flow(credentials, "/v1/notifications", ResultPage, query)


def get_notification_flow(credentials: ServiceCredentials, notification_id: str) -> Flow[dict[str, Any]]:
    return get_flow(credentials, f"/v1/notifications/{quote(notification_id, '')}", dict[str, Any])


def cancel_notification_flow(credentials: ServiceCredentials, notification_id: str) -> Flow[dict[str, Any]]:
    return post_flow(credentials, f"/v1/notifications/{quote(notification_id, '')}/cancel", {}, dict[str, Any])


# Dead letters


def list_dead_letters_flow(credentials: ServiceCredentials, query: Mapping[str, Any]) -> Flow[ResultPage]:
    return get_flow(credentials, "/v1/dead-letters", ResultPage, query)


def get_dead_letter_flow(credentials: ServiceCredentials, dead_letter_id: str) -> Flow[dict[str, Any]]:
    return get_flow(credentials, f"/v1/dead-letters/{quote(dead_letter_id, '')}", dict[str, Any])


def replay_dead_letter_flow(credentials: ServiceCredentials, dead_letter_id: str) -> Flow[UUID]:
    path = f"/v1/dead-letters/{quote(dead_letter_id, '')}/replay"
    return (yield from post_flow(credentials, path, {}, ReplayedEvent)).event_id


def replay_dead_letters_flow(credentials: ServiceCredentials, criteria: Mapping[str, Any]) -> Flow[int]:
    given = {name: value for name, value in criteria.items() if value is not None}
    return (yield from post_flow(credentials, "/v1/dead-letters/replay", given, ReplayedCount)).replayed


def resolve_dead_letter_flow(credentials: ServiceCredentials, dead_letter_id: str, note: str) -> Flow[dict[str, Any]]:
    path = f"/v1/dead-letters/{quote(dead_letter_id, '')}/resolve"
    return post_flow(credentials, path, {"note": note}, dict[str, Any])


# Tokens


def introspect_flow(credentials: ServiceCredentials, token: str) -> Flow[dict[str, Any]]:
    request = SendRequest("POST", "/oauth/introspect", form={"token": token})
    return decode_response(dict[str, Any], (yield from call_flow(credentials, request)))


def revoke_flow(credentials: ServiceCredentials, token: str) -> Flow[None]:
    response = yield from retry_flow(credentials.secret_request("/oauth/revoke", {"token": token}))
    raise_for_response(response)
