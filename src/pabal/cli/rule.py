"""`pabal notify rules list|show|add|change|remove`."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.api.notifications import RecipientType
from pabal.cli.context import cli_actor, with_hub, with_transaction
from pabal.cli.options import DatabaseUrl, DataDir, Json, parse_duration_option
from pabal.cli.output import local_time, print_fields, print_json, print_rows, print_text, read_all_pages
from pabal.core.actor import Actor
from pabal.core.errors import Invalid
from pabal.hub import Hub
from pabal.notifications.rules.rules import Rule, RuleDraft, add_rule, find_rule, list_rules, remove_rule, update_rule
from pabal.settings import format_duration

rules_app = cyclopts.App(name="rules", help="Which events make which notices, and for whom.")

PAGE_SIZE = 500
COLUMNS = ("id", "name", "events", "template", "to", "channels", "active")

RuleArgument = Annotated[UUID, Parameter(name="ID", help="The rule, as `pabal notify rules list` shows it.")]
ClearableField = Literal["guild_path", "incident_path", "expires_after"]


def repeated_option(**settings: Any) -> Any:
    return Parameter(negative="", consume_multiple=True, **settings)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class RuleOptions:
    """What a rule says, as far as it is said here."""

    events: Annotated[str | None, Parameter(help="Of these events: order.paid, order.*")] = None
    template: Annotated[str | None, Parameter(help="What is written.")] = None
    to: Annotated[
        list[str] | None, repeated_option(help="Paths into the payload: user.discord_id; of a list each.")
    ] = None
    channel: Annotated[list[RecipientType] | None, repeated_option(help="Where to.")] = None
    variable: Annotated[
        list[str] | None, repeated_option(help="NAME=PATH, for variables that are not at the path of their name.")
    ] = None
    guild_path: Annotated[str | None, Parameter(help="Where the payload names the guild.")] = None
    incident_path: Annotated[str | None, Parameter(help="Where the payload names the incident.")] = None
    expires_after: Annotated[
        timedelta | None,
        Parameter(converter=parse_duration_option, help="How long its notices are worth sending: 15m, 2h, 7d."),
    ] = None
    active: Annotated[bool | None, Parameter(negative="--inactive", help="Whether it makes notices.")] = None

    def columns(self) -> dict[str, Any]:
        """What is said, in the rule's own words."""
        said = {
            "event_pattern": self.events,
            "template_key": self.template,
            "recipients": self.to,
            "channels": self.channel,
            "variables": None if self.variable is None else dict(map(parse_variable, self.variable)),
            "guild_path": self.guild_path,
            "incident_path": self.incident_path,
            "expires_after": self.expires_after,
            "is_active": self.active,
        }
        return {name: value for name, value in said.items() if value is not None}


NO_OPTIONS = RuleOptions()


@rules_app.command(name="list")
def rule_list(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show the rules there are, the oldest first."""

    async def look(hub: Hub) -> list[Rule]:
        async with hub.autocommit() as tx:
            return await read_all_pages(lambda after: list_rules(tx, after=after, limit=PAGE_SIZE))

    every = with_hub(look, data_dir=data_dir, database_url=database_url)
    print_rows(every, COLUMNS, rule_cells, empty="No rules.", json=json)


@rules_app.command(name="show")
def rule_show(
    rule_id: RuleArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Show one rule."""
    print_rule(with_transaction(lambda tx: find_rule(tx, rule_id), data_dir, database_url), json=json)


@rules_app.command(name="add")
def rule_add(
    name: Annotated[str, Parameter(name="NAME", help="What people call it.")],
    /,
    *,
    options: RuleOptions = NO_OPTIONS,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Add a rule, for what is published from now on. It needs --events, --template, --to and --channel."""
    lacking = [f"--{each}" for each in ("events", "template", "to", "channel") if getattr(options, each) is None]
    if lacking:
        raise Invalid.of_field("rule", f"say {' and '.join(lacking)} as well")

    async def do(hub: Hub) -> Rule:
        async with hub.transaction() as tx:
            return await add_rule(tx, hub.templates, RuleDraft(name=name, **options.columns()), Actor(cli_actor()))

    print_rule(with_hub(do, data_dir=data_dir, database_url=database_url), json=json)


@rules_app.command(name="change")
def rule_change(
    rule_id: RuleArgument,
    /,
    *,
    name: Annotated[str | None, Parameter(help="What people call it.")] = None,
    options: RuleOptions = NO_OPTIONS,
    without: Annotated[list[ClearableField] | None, repeated_option(help="Take these from it.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Change what is named, from the next event on; the rest stays."""
    to = options.columns() | dict.fromkeys(without or ()) | ({} if name is None else {"name": name})
    if not to:
        raise Invalid.of_field("rule", "say what is to be otherwise")

    async def do(hub: Hub) -> Rule:
        async with hub.transaction() as tx:
            return await update_rule(tx, hub.templates, rule_id, to, Actor(cli_actor()))

    print_rule(with_hub(do, data_dir=data_dir, database_url=database_url), json=json)


@rules_app.command(name="remove")
def rule_remove(
    rule_id: RuleArgument, /, *, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False
) -> None:
    """Forget a rule. What it asked for already is sent."""
    with_transaction(lambda tx: remove_rule(tx, rule_id, Actor(cli_actor())), data_dir, database_url)
    if json:
        print_json({"removed": str(rule_id)})
    else:
        print_text(f"{rule_id} is gone")


def parse_variable(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals:
        raise Invalid.of_field("variable", f"{text} is not NAME=PATH")
    return name, path


def rule_cells(rule: Rule) -> tuple[object, ...]:
    return (
        rule.id,
        rule.name,
        rule.event_pattern,
        rule.template_key,
        " ".join(rule.recipients),
        " ".join(rule.channels),
        "yes" if rule.is_active else "no",
    )


def print_rule(rule: Rule, *, json: bool) -> None:
    if json:
        print_json(asdict(rule))
        return
    print_fields(
        [
            ("rule", rule.id),
            ("name", rule.name),
            ("events", rule.event_pattern),
            ("template", rule.template_key),
            ("to", " ".join(rule.recipients)),
            ("channels", " ".join(rule.channels)),
            *((f"variable {name}", path) for name, path in rule.variables.items()),
            ("guild", rule.guild_path),
            ("incident", rule.incident_path),
            ("expires after", rule.expires_after and format_duration(rule.expires_after)),
            ("active", "yes" if rule.is_active else "no"),
            ("added", f"{local_time(rule.created_at)} by {rule.created_by}"),
        ]
    )
