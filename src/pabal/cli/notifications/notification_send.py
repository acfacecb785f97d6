"""`pabal notification send`: request a notification, or show what would become of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, assert_never

import cyclopts
import msgspec
from cyclopts import Parameter

from pabal.cli.access.services import require_service
from pabal.cli.context import cli_actor, with_hub
from pabal.cli.notifications.template import TemplateArgument, print_rendered_text
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, JsonPayload, flag, parse_duration_option
from pabal.cli.output import local_time, print_json, print_text
from pabal.cli.payload import read_payload
from pabal.core.errors import SetupError
from pabal.db.errors import ForeignKeyViolation
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import DeliveryDecision, NotificationChannel, SendLater, SendNow, Suppress
from pabal.notifications.decision.texts import ExplanationLanguage, format_decision_steps
from pabal.notifications.preview import NotificationPreview, preview_notification, read_database_time
from pabal.notifications.requests import NotificationDraft, RequestedNotification, request_notifications

if TYPE_CHECKING:
    from pabal.hub import Hub

DECISION_NAMES: Mapping[type[DeliveryDecision], str] = {SendNow: "send", Suppress: "suppress", SendLater: "wait"}


def require_one_destination(arguments: cyclopts.ArgumentCollection) -> None:
    if len(arguments.filter_by(value_set=True)) != 1:
        raise ValueError("Use exactly one of --dm, --audit-channel and --toast.")


DESTINATION_GROUP = cyclopts.Group("Destination", validator=require_one_destination)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class DestinationOptions:
    """Where a notification goes. Exactly one is set."""

    dm: Annotated[str | None, Parameter(group=DESTINATION_GROUP, help="Direct message to this Discord user.")] = None
    audit_channel: Annotated[
        str | None, Parameter(group=DESTINATION_GROUP, help="Message in this Discord channel.")
    ] = None
    toast: Annotated[
        str | None, Parameter(group=DESTINATION_GROUP, help="Toast on the dashboard of this Discord user.")
    ] = None

    @property
    def address(self) -> tuple[NotificationChannel, str]:
        if self.dm is not None:
            return NotificationChannel.USER_DM, self.dm
        if self.audit_channel is not None:
            return NotificationChannel.GUILD_AUDIT_CHANNEL, self.audit_channel
        return NotificationChannel.DASHBOARD_TOAST, self.toast or ""


NO_DESTINATION = DestinationOptions()


def notification_send(
    template_key: TemplateArgument,
    /,
    *,
    destination: DestinationOptions = NO_DESTINATION,
    payload: JsonPayload = "{}",
    locale: Annotated[str | None, Parameter(help="Language. Default: the recipient's, else the hub's.")] = None,
    send_in: Annotated[
        timedelta | None,
        Parameter(
            metavar="DURATION", converter=parse_duration_option, help="Delay the notification: 90s, 15m, 2h, 7d."
        ),
    ] = None,
    expires_in: Annotated[
        timedelta | None,
        Parameter(
            metavar="DURATION", converter=parse_duration_option, help="Time to live. An emergency never expires."
        ),
    ] = None,
    incident: Annotated[
        str | None, Parameter(help="Emergencies of the same incident are sent at most once a minute.")
    ] = None,
    source: Annotated[str | None, Parameter(help="The requesting service. Default: you.")] = None,
    idempotency_key: Annotated[
        str | None, Parameter(name="--key", help="Idempotency key: the same source and key are requested once.")
    ] = None,
    dry_run: Annotated[bool, flag("Show the decision and the text without sending anything.")] = False,
    language: Annotated[ExplanationLanguage, Parameter(help="Language of the reasons of a dry run.")] = "en",
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Request a notification. Prints its id once it is durable. If the recipient opted out, it is suppressed."""
    variables: dict[str, Any] = msgspec.json.decode(read_payload(payload))
    channel, recipient = destination.address

    async def send(hub: "Hub") -> tuple[NotificationDraft, RequestedNotification | NotificationPreview]:
        async with hub.transaction() as tx:
            if source is not None:
                await require_service(tx, source)
            due = await read_database_time(tx) + (send_in or timedelta())
            draft = NotificationDraft(
                channel=channel,
                recipient=recipient,
                template=hub.templates.get(template_key),
                payload=variables,
                locale=locale,
                scheduled_at=due if send_in else None,
                expires_at=due + expires_in if expires_in else None,
                idempotency_key=idempotency_key,
                incident=incident,
                source=source,
            )
            if dry_run:
                return draft, await preview_notification(tx, draft, hub.settings.chat_language)
            return draft, await submit_notification(tx, draft)

    draft, result = with_hub(connection, send)
    match result:
        case RequestedNotification():
            print_requested(result, json=json)
        case NotificationPreview():
            print_json(preview_json(result)) if json else print_preview(draft, result, language)


async def submit_notification(tx: Tx, draft: NotificationDraft) -> RequestedNotification:
    try:
        [requested] = await request_notifications(tx, [draft], cli_actor())
    except ForeignKeyViolation:
        raise SetupError(
            f"template {draft.template.key} is not in the database yet: a hub registers it when it starts"
        ) from None
    return requested


def print_requested(requested: RequestedNotification, *, json: bool) -> None:
    if json:
        print_json(asdict(requested))
    elif requested.repeated:
        print_text(f"notification {requested.id} was already requested with this key; it is {requested.state}")
    elif requested.reason:
        print_text(
            f"notification {requested.id} suppressed: {requested.reason}; "
            f"see `pabal notification explain {requested.id}`"
        )
    else:
        print_text(f"notification {requested.id} requested; due {local_time(requested.scheduled_at)}")


def print_preview(draft: NotificationDraft, preview: NotificationPreview, language: ExplanationLanguage) -> None:
    print_text(decision_text(preview.decision), "bold")
    for step in format_decision_steps(preview.decision.steps, draft.template.category, language):
        print_text(f"  {step}")
    print_rendered_text(f"{draft.channel} {preview.locale}", preview.rendered)


def preview_json(preview: NotificationPreview) -> dict[str, Any]:
    decision = preview.decision
    return {
        "would": DECISION_NAMES[type(decision)],
        "reason": decision.reason if isinstance(decision, Suppress) else None,
        "until": decision.until if isinstance(decision, SendLater) else None,
        "steps": decision.steps,
        "locale": preview.locale,
        **asdict(preview.rendered),
    }


def decision_text(decision: DeliveryDecision) -> str:
    match decision:
        case SendNow():
            return "It would be sent."
        case Suppress(reason):
            return f"It would be suppressed: {reason}."
        case SendLater(until):
            return f"It would be sent after {local_time(until)}."
        case _:
            assert_never(decision)
