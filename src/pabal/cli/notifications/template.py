"""`pabal template list|show|preview|check`."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts
import msgspec
from cyclopts import Parameter

from pabal.cli.context import with_hub
from pabal.cli.examples import examples
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, flag
from pabal.cli.output import (
    print_block,
    print_error,
    print_fields,
    print_json,
    print_json_items,
    print_table,
    print_text,
)
from pabal.cli.payload import read_payload
from pabal.core.errors import FieldError, Invalid, InvalidSettings, NotFound
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.preview import sample_payload
from pabal.notifications.recipient_forms import check_locale
from pabal.notifications.states import RecipientType
from pabal.notifications.templates.catalogue import load_templates
from pabal.notifications.templates.render import RenderedText, render_notification
from pabal.notifications.templates.template import TEMPLATE_LOCALES, Template
from pabal.notifications.templates.unknown_keys import find_unknown_keys_in_code, find_unknown_keys_in_database
from pabal.settings import load_settings

if TYPE_CHECKING:
    from pabal.hub import Hub

app = cyclopts.App(
    name="template",
    help="Inspect and check notification templates.",
    help_epilogue=examples("template preview payment.succeeded", "template check --code src"),
)

COLUMNS = ("template", "category", "criticality", "channels", "variables")
TemplateArgument = Annotated[str, Parameter(name="TEMPLATE", help="Key of the template, such as payment.succeeded.")]


@app.command(name="list", help_epilogue=examples("template list", "template list --json"))
def template_list(*, json: Json = False) -> None:
    """List the templates of this installation. Needs no database."""
    templates = load_templates(load_settings().templates).all()
    if json:
        print_json_items(map(template_json, templates))
        return
    rows = [
        (template.key, template.category, template.criticality, " ".join(template.texts), " ".join(template.variables))
        for template in templates
    ]
    print_table(COLUMNS, rows, empty="No templates.")


@app.command(
    name="show", help_epilogue=examples("template show payment.succeeded", "template show payment.succeeded --json")
)
def template_show(template_key: TemplateArgument, /, *, json: Json = False) -> None:
    """Show a template: its category, channels and variables. Needs no database."""
    template = find_template(template_key)
    if json:
        print_json(template_json(template))
        return
    print_fields(
        [
            ("template", template.key),
            ("category", template.category),
            ("criticality", template.criticality),
            ("channels", " ".join(template.texts)),
            *((f"variable {name}", kind) for name, kind in template.variables.items()),
        ]
    )


@app.command(
    name="preview",
    help_epilogue=examples(
        "template preview payment.succeeded",
        """template preview payment.succeeded --locale ko --payload '{"amount": 5000}'""",
    ),
)
def template_preview(
    template_key: TemplateArgument,
    /,
    *,
    payload: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="A JSON object; @FILE reads it from a file, - from standard input. Default: sample values.",
        ),
    ] = None,
    channel: Annotated[RecipientType | None, Parameter(help="Only this channel.")] = None,
    locale: Annotated[str | None, Parameter(help="Only this language: ko, en.")] = None,
    json: Json = False,
) -> None:
    """Render a template for each channel and language. Needs no database."""
    template = find_template(template_key)
    variables: dict[str, Any] = (
        sample_payload(template) if payload is None else msgspec.json.decode(read_payload(payload))
    )
    if problems := template.payload_errors(variables):
        raise Invalid(*problems)
    if locale is not None:
        check_locale(locale)
    if channel is not None and channel not in template.texts:
        raise Invalid.of_field("channel", f"{template_key} has no text for {channel}")
    texts = [*render_texts(template, variables, channel and NotificationChannel(channel), locale)]
    if json:
        print_json_items({"channel": name, "locale": language, **asdict(text)} for name, language, text in texts)
        return
    for name, language, text in texts:
        print_rendered_text(f"{name} {language}", text)


@app.command(name="check", help_epilogue=examples("template check", "template check --code src --files-only"))
def template_check(
    *,
    code: Annotated[Path | None, Parameter(help="Directory of Python code: the templates it names must exist.")] = None,
    files_only: Annotated[bool, flag("Do not check the database.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Check that every template has all languages, and that code and database name no unknown template.

    Exits with 1 if there is a problem.
    """
    try:
        templates = load_templates(
            load_settings(data_dir=connection.data_dir, database_url=connection.database_url).templates
        )
    except InvalidSettings as error:
        print_template_check(0, [*error.errors], json=json)
        return
    problems = find_unknown_keys_in_code(code, templates) if code is not None else []

    async def check(hub: "Hub") -> list[FieldError]:
        async with hub.autocommit() as tx:
            return await find_unknown_keys_in_database(tx, hub.templates)

    if not files_only:
        problems += with_hub(connection, check)
    print_template_check(len(templates.all()), problems, json=json)


def find_template(key: str) -> Template:
    templates = load_templates(load_settings().templates)
    if key not in templates:
        raise NotFound(f"No such template: {key}. See `pabal template list`")
    return templates.get(key)


def template_json(template: Template) -> dict[str, Any]:
    return {
        "key": template.key,
        "category": template.category,
        "criticality": template.criticality,
        "channels": [*template.texts],
        "variables": dict(template.variables),
    }


def render_texts(
    template: Template, variables: dict[str, Any], channel: NotificationChannel | None, locale: str | None
) -> Iterator[tuple[NotificationChannel, str, RenderedText]]:
    for name in template.texts if channel is None else [channel]:
        for language in TEMPLATE_LOCALES if locale is None else [locale]:
            yield name, language, render_notification(template, name, language, variables)


def print_rendered_text(heading: str, text: RenderedText) -> None:
    print_block(heading, "\n".join(line for line in (text.title, text.body) if line))


def print_template_check(count: int, problems: list[FieldError], *, json: bool) -> None:
    if json:
        print_json({"templates": count, "mistakes": [*map(asdict, problems)]})
    elif not problems:
        print_text(f"{count} templates checked, no problems")
    else:
        for problem in problems:
            print_error(str(problem))
    if problems:
        sys.exit(1)
