"""`pabal notify prefs`: what somebody wants to be told."""

from dataclasses import asdict, fields
from typing import Annotated, Any
from uuid import UUID

from cyclopts import Parameter

from pabal.cli import screen, wide
from pabal.cli.errand import cli_actor, with_hub
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.actor import Actor
from pabal.core.errors import Invalid
from pabal.notifications import preferences
from pabal.notifications.preferences import Preferences, PreferencesOwner, PreferencesUpdate
from pabal.wiring import Hub

TRUE_WORDS, FALSE_WORDS = frozenset({"true", "on", "yes", "1"}), frozenset({"false", "off", "no", "0"})
PREFERENCE_NAMES = tuple(field.name for field in fields(PreferencesUpdate))


def person_preferences(
    person: Annotated[str, Parameter(name="ID", help="The Discord user, or a registered user's UUID.")],
    /,
    *,
    set: Annotated[
        list[str] | None,
        Parameter(negative="", consume_multiple=True, help=f"NAME=VALUE, of {', '.join(PREFERENCE_NAMES)}."),
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show what somebody wants to be told, and change it. Whoever said nothing has the defaults."""
    who, wish = parse_person(person), parse_preferences(set or [])

    async def do(hub: Hub) -> Preferences:
        async with hub.transaction() as tx:
            return await preferences.update_preferences(tx, who, wish, Actor(cli_actor()))

    found = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.print_json(asdict(found))
        return
    wide.print_fields(
        [
            ("user", found.user_id),
            ("discord", found.discord_id),
            *((name.replace("_", " "), "on" if on else "off") for name, on in asdict(found.flags).items()),
            ("night consent", wide.local_time(found.night_consent_at) or "none"),
            ("locale", found.locale or "the hub's"),
            ("changed", wide.local_time(found.updated_at) or "never"),
        ]
    )


def parse_person(person: str) -> PreferencesOwner:
    try:
        return UUID(person)
    except ValueError:
        return person


def parse_preferences(pairs: list[str]) -> PreferencesUpdate:
    said: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in PREFERENCE_NAMES:
            raise Invalid.of_field("set", f"{name} is none of {', '.join(PREFERENCE_NAMES)}")
        said[name] = value if name == "locale" else parse_switch(name, value.lower())
    return PreferencesUpdate(**said)


def parse_switch(name: str, value: str) -> bool:
    if value not in TRUE_WORDS | FALSE_WORDS:
        raise Invalid.of_field("set", f"{name} is true or false")
    return value in TRUE_WORDS
