"""`pabal person preferences|link|unlink|export|erase`."""

from dataclasses import asdict, fields
from typing import Annotated, Any
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import cli_actor, run_transaction
from pabal.cli.examples import examples
from pabal.cli.options import (
    DEFAULT_CONNECTION,
    Connection,
    Json,
    SkipConfirmation,
    UsageError,
    refuse_arguments,
    repeatable,
)
from pabal.cli.output import local_time, print_fields, print_json
from pabal.cli.privacy import ExportFile, confirm_and_erase, write_export
from pabal.notifications.people.links import unlink_account
from pabal.notifications.people.preferences import (
    Preferences,
    PreferencesUpdate,
    check_reason,
    link_discord_account,
    parse_preferences_owner,
    update_preferences,
)
from pabal.notifications.privacy import PersonDataCounts, count_person_data, erase_person, export_person
from pabal.notifications.recipient_forms import check_person_id

app = cyclopts.App(
    name="person",
    help="Manage the data of a notification recipient.\n\nThe data includes preferences and links.",
    help_epilogue=examples("person preferences 80351110224678912", "person export 80351110224678912 --to mina.json"),
)

TRUE_WORDS, FALSE_WORDS = frozenset({"true", "on", "yes", "1"}), frozenset({"false", "off", "no", "0"})
PREFERENCE_NAMES = tuple(field.name for field in fields(PreferencesUpdate))
Reason = Annotated[str, Parameter(help="Why, for the audit log, without personal data.")]
PersonArgument = Annotated[str, Parameter(name="PERSON", help="The Discord user id.")]


@app.command(
    name="preferences",
    help_epilogue=examples(
        "person preferences 80351110224678912 --set locale=ko --set dm_enabled=off",
        "person preferences 80351110224678912 --set night_consent=on --reason 'consent form of 3 May'",
    ),
)
def person_preferences(
    person: Annotated[str, Parameter(name="PERSON", help="The Discord user id, or the UUID of a registered user.")],
    /,
    *,
    set: Annotated[
        list[str] | None, repeatable(f"Change a preference: NAME=VALUE, with one of {', '.join(PREFERENCE_NAMES)}.")
    ] = None,
    reason: Annotated[
        str | None,
        Parameter(help="Why, for the audit log, without personal data. Required to set night_consent for a person."),
    ] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Show or change a person's notification preferences. Without any, the defaults apply."""
    owner, update = parse_preferences_owner(check_person_id(person)), parse_preferences(set or [])
    check_consent_reason(update, reason)
    preferences = run_transaction(
        connection, lambda tx: update_preferences(tx, owner, update, cli_actor(), reason=reason)
    )
    print_preferences(preferences, json=json)


@app.command(
    name="link",
    help_epilogue=examples(
        "person link 80351110224678912 019a9b1c-5c1e-7d3a-b1a5-0c8d7f0a4e21 --reason 'identity checked in ticket 311'",
        "person link 80351110224678912 019a9b1c-5c1e-7d3a-b1a5-0c8d7f0a4e21 --reason 'moved from the old hub' --json",
    ),
)
def person_link(
    person: PersonArgument,
    user: Annotated[UUID, Parameter(name="USER", help="The UUID of the registered user.")],
    /,
    *,
    reason: Reason,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Link a Discord account to a registered user.

    The user's preferences then apply to both; whatever is off in either stays off.
    """
    check_reason_option(reason)
    check_person_id(person)
    preferences = run_transaction(
        connection, lambda tx: link_discord_account(tx, person, user, cli_actor(), reason=reason)
    )
    print_preferences(preferences, json=json)


@app.command(
    name="unlink",
    help_epilogue=examples(
        "person unlink 80351110224678912 --reason 'linked to the wrong user'",
        "person unlink 80351110224678912 --reason 'the account was sold' --json",
    ),
)
def person_unlink(
    person: PersonArgument, /, *, reason: Reason, connection: Connection = DEFAULT_CONNECTION, json: Json = False
) -> None:
    """Undo the link of a Discord account. Both sides keep their preferences; the user's sessions end."""
    check_reason_option(reason)
    preferences = run_transaction(connection, lambda tx: unlink_account(tx, person, cli_actor(), reason=reason))
    print_preferences(preferences, json=json)


@app.command(
    name="export",
    help_epilogue=examples("person export 80351110224678912", "person export 80351110224678912 --to mina.json"),
)
def person_export(
    person: PersonArgument, /, *, to: ExportFile = None, connection: Connection = DEFAULT_CONNECTION
) -> None:
    """Export everything the hub stores about a person as one JSON document."""
    document = run_transaction(connection, lambda tx: export_person(tx, person, cli_actor()))
    write_export(document, f"{len(document['requests'])} notifications", to)


@app.command(
    name="erase",
    help_epilogue=examples("person erase 80351110224678912", "person erase 80351110224678912 --yes --json"),
)
def person_erase(
    person: PersonArgument,
    /,
    *,
    yes: SkipConfirmation = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Erase everything the hub stores about a person. Their pending notifications are not sent."""
    confirm_and_erase(
        connection,
        lambda tx: count_person_data(tx, person),
        lambda tx: erase_person(tx, person, cli_actor()),
        person_data_text,
        yes=yes,
        json=json,
    )


def parse_preferences(pairs: list[str]) -> PreferencesUpdate:
    values: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in PREFERENCE_NAMES:
            raise UsageError(f"--set {name}: is not one of {', '.join(PREFERENCE_NAMES)}")
        values[name] = value if name == "locale" else parse_switch(name, value.lower())
    return PreferencesUpdate(**values)


def check_consent_reason(update: PreferencesUpdate, reason: str | None) -> None:
    """Consent is the person's: an operator who records it must say why."""
    if reason is not None:
        check_reason_option(reason)
    if update.night_consent and reason is None:
        raise UsageError("--reason is required to set night_consent: say how the person gave their consent")


def check_reason_option(reason: str) -> None:
    with refuse_arguments("--reason"):
        check_reason(reason)


def print_preferences(preferences: Preferences, *, json: bool) -> None:
    if json:
        print_json(asdict(preferences))
        return
    print_fields(
        [
            ("user", preferences.user_id),
            ("discord", preferences.discord_id),
            ("linked", preferences.linked_at and f"{local_time(preferences.linked_at)} by {preferences.linked_by}"),
            *((name.replace("_", " "), "on" if on else "off") for name, on in asdict(preferences.flags).items()),
            ("night consent", local_time(preferences.night_consent_at) or "none"),
            ("locale", preferences.locale or "default"),
            ("changed", local_time(preferences.updated_at) or "never"),
        ]
    )


def parse_switch(name: str, value: str) -> bool:
    if value not in TRUE_WORDS | FALSE_WORDS:
        raise UsageError(f"--set {name}: must be true or false")
    return value in TRUE_WORDS


def person_data_text(counts: PersonDataCounts) -> str:
    return f"{counts.total} rows ({counts.requests} notifications, {counts.toasts} toasts, {counts.others} others)"
