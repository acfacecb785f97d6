"""`pabal notify send`: ask for a notice, or see what would become of it."""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, assert_never

import cyclopts
import msgspec
from cyclopts import Parameter

from pabal.api.notifications import RecipientType
from pabal.cli.context import cli_actor, with_hub
from pabal.cli.event import read_payload
from pabal.cli.options import DatabaseUrl, DataDir, Json, parse_duration_option
from pabal.cli.output import local_time, print_block, print_error, print_json, print_text
from pabal.cli.services import require_service
from pabal.core.actor import Actor
from pabal.core.errors import FieldError, Invalid, InvalidSettings, SetupError
from pabal.db.errors import ForeignKeyViolation
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.notifications.decision.decide import DeliveryDecision, NotificationChannel, SendLater, SendNow, Suppress
from pabal.notifications.decision.texts import ExplanationLanguage, format_decision_steps
from pabal.notifications.preview import NotificationPreview, preview_notification, sample_payload
from pabal.notifications.requests import (
    NotificationDraft,
    RequestedNotification,
    read_database_time,
    request_notifications,
)
from pabal.notifications.templates.catalogue import load_templates
from pabal.notifications.templates.render import RenderedText, render_notification
from pabal.notifications.templates.template import TEMPLATE_LOCALES, Template
from pabal.notifications.templates.unknown_keys import find_unknown_keys_in_code, find_unknown_keys_in_database
from pabal.settings import load_settings


def template_preview(
    template_key: Annotated[str, Parameter(name="TEMPLATE", help="Which template: payment.succeeded")],
    /,
    *,
    payload: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="A JSON object; @FILE reads it from a file, - from standard input. Default: made-up values.",
        ),
    ] = None,
    channel: Annotated[RecipientType | None, Parameter(help="Only for this channel.")] = None,
    locale: Annotated[str | None, Parameter(help="Only in this language: ko, en.")] = None,
    json: Json = False,
) -> None:
    """Show what a template says, on each channel and in each language. No hub is needed."""
    template = load_templates(load_settings().templates).get(template_key)
    variables: dict[str, Any] = (
        sample_payload(template) if payload is None else msgspec.json.decode(read_payload(payload))
    )
    if mistakes := template.payload_errors(variables):
        raise Invalid(*mistakes)
    if channel is not None and channel not in template.texts:
        raise Invalid.of_field("channel", f"{template_key} has no text for {channel}")
    written = [*render_texts(template, variables, channel and NotificationChannel(channel), locale)]
    if json:
        print_json([{"channel": where, "locale": spoken, **asdict(text)} for where, spoken, text in written])
        return
    for where, spoken, text in written:
        print_rendered_text(f"{where} {spoken}", text)


def template_check(
    *,
    code: Annotated[
        Path | None, Parameter(help="A folder of Python code: the templates it names must be there.")
    ] = None,
    files_only: Annotated[bool, Parameter(negative="", help="Ask no database what it names.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Check that templates say the same in every language, and that code and database name none that is not there.

    Exits with 1 if anything is wrong.
    """
    try:
        known = load_templates(load_settings(data_dir=data_dir, database_url=database_url).templates)
    except InvalidSettings as error:
        print_template_check(0, [*error.errors], json=json)
        return
    mistakes = find_unknown_keys_in_code(code, known) if code is not None else []

    async def look(hub: Hub) -> list[FieldError]:
        async with hub.autocommit() as tx:
            return await find_unknown_keys_in_database(tx, hub.templates)

    if not files_only:
        mistakes += with_hub(look, data_dir=data_dir, database_url=database_url)
    print_template_check(len(known.all()), mistakes, json=json)


def render_texts(
    template: Template, variables: dict[str, Any], channel: NotificationChannel | None, locale: str | None
) -> Iterator[tuple[NotificationChannel, str, RenderedText]]:
    for where in template.texts if channel is None else [channel]:
        for spoken in TEMPLATE_LOCALES if locale is None else [locale]:
            yield where, spoken, render_notification(template, where, spoken, variables)


def print_rendered_text(heading: str, text: RenderedText) -> None:
    print_block(heading, "\n".join(line for line in (text.title, text.body) if line))


def print_template_check(count: int, mistakes: list[FieldError], *, json: bool) -> None:
    if json:
        print_json({"templates": count, "mistakes": [asdict(each) for each in mistakes]})
    elif not mistakes:
        print_text(f"{count} templates are in order")
    else:
        for each in mistakes:
            print_error(str(each))
    if mistakes:
        sys.exit(1)


def require_one_destination(arguments: cyclopts.ArgumentCollection) -> None:
    if len(arguments.filter_by(value_set=True)) != 1:
        raise ValueError("Say one of --dm, --audit-channel and --toast.")


DESTINATION_GROUP = cyclopts.Group("Where to", validator=require_one_destination)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class DestinationOptions:
    """Where a notice goes."""

    dm: Annotated[str | None, Parameter(group=DESTINATION_GROUP, help="As a direct message to this Discord user.")] = (
        None
    )
    audit_channel: Annotated[str | None, Parameter(group=DESTINATION_GROUP, help="Into this Discord channel.")] = None
    toast: Annotated[str | None, Parameter(group=DESTINATION_GROUP, help="Into this Discord user's dashboard.")] = None

    @property
    def address(self) -> tuple[NotificationChannel, str]:
        if self.dm is not None:
            return NotificationChannel.USER_DM, self.dm
        if self.audit_channel is not None:
            return NotificationChannel.GUILD_AUDIT_CHANNEL, self.audit_channel
        return NotificationChannel.DASHBOARD_TOAST, self.toast or ""


NO_DESTINATION = DestinationOptions()


def notification_send(
    template_key: Annotated[str, Parameter(name="TEMPLATE", help="What it says: payment.succeeded")],
    /,
    *,
    destination: DestinationOptions = NO_DESTINATION,
    payload: Annotated[
        str,
        Parameter(allow_leading_hyphen=True, help="A JSON object; @FILE reads it from a file, - from standard input."),
    ] = "{}",
    locale: Annotated[str | None, Parameter(help="The language. Default: the recipient's, or the hub's.")] = None,
    send_in: Annotated[
        timedelta | None, Parameter(converter=parse_duration_option, help="Not before: 90s, 15m, 2h, 7d.")
    ] = None,
    expires_in: Annotated[
        timedelta | None,
        Parameter(converter=parse_duration_option, help="How late it may be; an emergency is never too late."),
    ] = None,
    incident: Annotated[str | None, Parameter(help="Emergencies of one incident are told once a minute.")] = None,
    source: Annotated[
        str | None, Parameter(help="The service that asks. Default: the person at this terminal.")
    ] = None,
    idempotency_key: Annotated[
        str | None, Parameter(name="--key", help="The same key of the same source is asked for once.")
    ] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Show what would be decided and said; send nothing.")] = False,
    language: Annotated[ExplanationLanguage, Parameter(help="In which language a dry run gives its reasons.")] = "en",
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Ask for a notice. When this says so, it is recorded; what nobody wants is recorded as suppressed."""
    variables: dict[str, Any] = msgspec.json.decode(read_payload(payload))
    channel, recipient = destination.address

    async def do(hub: Hub) -> tuple[NotificationDraft, RequestedNotification | NotificationPreview]:
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

    draft, became = with_hub(do, data_dir=data_dir, database_url=database_url)
    match became:
        case RequestedNotification():
            print_json(asdict(became)) if json else print_submitted(became)
        case NotificationPreview():
            print_json(preview_json(became)) if json else print_preview(draft, became, language)


async def submit_notification(tx: Tx, draft: NotificationDraft) -> RequestedNotification:
    try:
        [asked] = await request_notifications(tx, [draft], Actor(cli_actor()))
    except ForeignKeyViolation:
        raise SetupError(
            f"the database does not know {draft.template.key} yet: a hub registers it when it starts"
        ) from None
    return asked


def print_submitted(submitted: RequestedNotification) -> None:
    if submitted.repeated:
        print_text(f"notification {submitted.id} was asked for under this key before; it is {submitted.state}")
    elif submitted.reason:
        print_text(
            f"notification {submitted.id} is suppressed: {submitted.reason}; `pabal notify explain {submitted.id}` says more"  # noqa: E501
        )
    else:
        print_text(f"notification {submitted.id} is recorded; it is due {local_time(submitted.scheduled_at)}")


def print_preview(draft: NotificationDraft, preview: NotificationPreview, language: ExplanationLanguage) -> None:
    print_text(dry_run_text(preview.decision), "bold")
    for says in format_decision_steps(preview.decision.steps, draft.template.category, language):
        print_text(f"  {says}")
    print_rendered_text(f"{draft.channel} {preview.locale}", preview.rendered)


def preview_json(preview: NotificationPreview) -> dict[str, Any]:
    decision = preview.decision
    return {
        "would": {SendNow: "send", Suppress: "suppress", SendLater: "wait"}[type(decision)],
        "reason": decision.reason if isinstance(decision, Suppress) else None,
        "until": decision.until if isinstance(decision, SendLater) else None,
        "steps": decision.steps,
        "locale": preview.locale,
        **asdict(preview.rendered),
    }


def dry_run_text(decision: DeliveryDecision) -> str:
    match decision:
        case SendNow():
            return "it would be sent"
        case Suppress(reason):
            return f"it would be suppressed: {reason}"
        case SendLater(until):
            return f"it would wait until {local_time(until)}"
        case _:
            assert_never(decision)
