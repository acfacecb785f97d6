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
from pabal.cli.errand import errand
from pabal.cli.event import brought
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.errors import Invalid, Misconfigured, Mistake
from pabal.notifications import catalogue
from pabal.notifications.check import in_code, in_database
from pabal.notifications.plan import Channel
from pabal.notifications.rehearse import made_up
from pabal.notifications.render import Rendered, render
from pabal.notifications.template import LOCALES, Template
from pabal.settings import read
from pabal.wiring import Hub


def preview(
    key: Annotated[str, Parameter(name="TEMPLATE", help="Which template: payment.succeeded")],
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
    template = catalogue.read(read().templates).get(key)
    variables: dict[str, Any] = made_up(template) if payload is None else msgspec.json.decode(brought(payload))
    if mistakes := template.wrong(variables):
        raise Invalid(*mistakes)
    if channel is not None and channel not in template.texts:
        raise Invalid.one("channel", f"{key} has no text for {channel}")
    written = [*texts(template, variables, channel and Channel(channel), locale)]
    if json:
        screen.as_json([{"channel": where, "locale": spoken, **asdict(text)} for where, spoken, text in written])
        return
    for where, spoken, text in written:
        show_text(f"{where} {spoken}", text)


def check(
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
        known = catalogue.read(read(data_dir=data_dir, database_url=database_url).templates)
    except Misconfigured as error:
        say_checked(0, [*error.mistakes], json=json)
        return
    mistakes = in_code(code, known) if code is not None else []

    async def look(hub: Hub) -> list[Mistake]:
        async with hub.autocommit() as tx:
            return await in_database(tx, hub.catalogue)

    if not files_only:
        mistakes += errand(look, data_dir=data_dir, database_url=database_url)
    say_checked(len(known.all()), mistakes, json=json)


def texts(
    template: Template, variables: dict[str, Any], channel: Channel | None, locale: str | None
) -> Iterator[tuple[Channel, str, Rendered]]:
    for where in template.texts if channel is None else [channel]:
        for spoken in LOCALES if locale is None else [locale]:
            yield where, spoken, render(template, where, spoken, variables)


def show_text(heading: str, text: Rendered) -> None:
    wide.block(heading, "\n".join(line for line in (text.title, text.body) if line))


def say_checked(templates: int, mistakes: list[Mistake], *, json: bool) -> None:
    if json:
        screen.as_json({"templates": templates, "mistakes": [asdict(each) for each in mistakes]})
    elif not mistakes:
        screen.say(f"{templates} templates are in order")
    else:
        for each in mistakes:
            screen.complain(str(each))
    if mistakes:
        sys.exit(1)
