"""`pabal notify prefs`: what somebody wants to be told."""

from dataclasses import asdict, fields
from typing import Annotated, Any
from uuid import UUID

from cyclopts import Parameter

from pabal.cli import screen, wide
from pabal.cli.errand import actor, errand
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.actor import Actor
from pabal.core.errors import Invalid
from pabal.notifications import preferences
from pabal.notifications.preferences import Preference, Who, Wish
from pabal.wiring import Hub

YES, NO = frozenset({"true", "on", "yes", "1"}), frozenset({"false", "off", "no", "0"})
WISHES = tuple(field.name for field in fields(Wish))


def prefs(
    person: Annotated[str, Parameter(name="ID", help="The Discord user, or a registered user's UUID.")],
    /,
    *,
    set: Annotated[  # noqa: A002 the option's name
        list[str] | None,
        Parameter(negative="", consume_multiple=True, help=f"NAME=VALUE, of {', '.join(WISHES)}."),
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show what somebody wants to be told, and change it. Whoever said nothing has the defaults."""
    who, wish = who_is(person), wished(set or [])

    async def do(hub: Hub) -> Preference:
        async with hub.transaction() as tx:
            return await preferences.put(tx, who, wish, Actor(actor()))

    found = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(found))
        return
    wide.facts(
        [
            ("user", found.user_id),
            ("discord", found.discord_id),
            *((name.replace("_", " "), "on" if on else "off") for name, on in asdict(found.switches).items()),
            ("night consent", wide.local(found.night_consent_at) or "none"),
            ("locale", found.locale or "the hub's"),
            ("changed", wide.local(found.updated_at) or "never"),
        ]
    )


def who_is(person: str) -> Who:
    try:
        return UUID(person)
    except ValueError:
        return person


def wished(pairs: list[str]) -> Wish:
    said: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in WISHES:
            raise Invalid.one("set", f"{name} is none of {', '.join(WISHES)}")
        said[name] = value if name == "locale" else switch(name, value.lower())
    return Wish(**said)


def switch(name: str, value: str) -> bool:
    if value not in YES | NO:
        raise Invalid.one("set", f"{name} is true or false")
    return value in YES
