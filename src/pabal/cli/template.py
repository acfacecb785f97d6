"""`pabal notify preview|check`: what templates say, and whether everybody names those there are."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from pabal.api.notifications import RecipientType
from pabal.cli import screen, wide
from pabal.cli.errand import with_hub
from pabal.cli.event import read_payload
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.errors import FieldError, Invalid, InvalidSettings
from pabal.notifications import catalogue
from pabal.notifications.check import find_unknown_keys_in_code, find_unknown_keys_in_database
from pabal.notifications.plan import NotificationChannel
from pabal.notifications.rehearse import sample_payload
from pabal.notifications.render import RenderedText, render_notification
from pabal.notifications.template import TEMPLATE_LOCALES, Template
from pabal.settings import load_settings
from pabal.wiring import Hub


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
    template = catalogue.load_templates(load_settings().templates).get(template_key)
    variables: dict[str, Any] = (
        sample_payload(template) if payload is None else msgspec.json.decode(read_payload(payload))
    )
    if mistakes := template.payload_errors(variables):
        raise Invalid(*mistakes)
    if channel is not None and channel not in template.texts:
        raise Invalid.of_field("channel", f"{template_key} has no text for {channel}")
    written = [*render_texts(template, variables, channel and NotificationChannel(channel), locale)]
    if json:
        screen.print_json([{"channel": where, "locale": spoken, **asdict(text)} for where, spoken, text in written])
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
        known = catalogue.load_templates(load_settings(data_dir=data_dir, database_url=database_url).templates)
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
    wide.print_block(heading, "\n".join(line for line in (text.title, text.body) if line))


def print_template_check(count: int, mistakes: list[FieldError], *, json: bool) -> None:
    if json:
        screen.print_json({"templates": count, "mistakes": [asdict(each) for each in mistakes]})
    elif not mistakes:
        screen.print_text(f"{count} templates are in order")
    else:
        for each in mistakes:
            screen.print_error(str(each))
    if mistakes:
        sys.exit(1)
