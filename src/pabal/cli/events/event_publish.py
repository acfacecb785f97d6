"""What `pabal event publish` needs beyond the other event commands."""

from datetime import timedelta

import msgspec

from pabal.cli.access.services import require_service
from pabal.cli.context import run_transaction
from pabal.cli.options import Connection, UsageError
from pabal.cli.payload import read_payload
from pabal.db.tx import Tx
from pabal.events.publish.publish import EventDraft, PublishResult, check_publish_right, publish_events
from pabal.events.types import PRIORITY_BY_NAME, EventType

PRIORITIES = PRIORITY_BY_NAME | {str(number): number for number in range(1, 11)}


def publish_from_terminal(
    connection: Connection,
    *,
    source: str,
    event_type: str,
    payload: str,
    target: str | None,
    priority: str,
    max_retries: int,
    deliver_in: timedelta | None,
    idempotency_key: str | None,
    ordering_key: str | None,
) -> PublishResult:
    """Check the arguments, then publish in one transaction."""
    body, priority_number = read_payload(payload), parse_priority(priority)
    check_event_type(event_type)

    async def publish(tx: Tx) -> PublishResult:
        service = await require_service(tx, source)
        check_publish_right(source, event_type, service.may_publish)
        draft = EventDraft(
            source=source,
            event_type=event_type,
            payload=body,
            target=target,
            priority=priority_number,
            max_retries=max_retries,
            deliver_at=service.now + deliver_in if deliver_in else None,
            idempotency_key=idempotency_key,
            ordering_key=ordering_key,
        )
        [result] = await publish_events(tx, [draft])
        if isinstance(result, Exception):
            raise result
        return result

    return run_transaction(connection, publish)


def check_event_type(event_type: str) -> None:
    try:
        msgspec.convert(event_type, EventType)
    except msgspec.ValidationError:
        raise UsageError(
            "TYPE must be lower-case words joined by dots, such as order.paid; at most 128 characters"
        ) from None


def parse_priority(priority: str) -> int:
    if priority not in PRIORITIES:
        raise UsageError("--priority must be 1 to 10, or critical, high, normal, low")
    return PRIORITIES[priority]
