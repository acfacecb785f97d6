"""`pabal rule list|show|add|set|enable|disable|remove`."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import cyclopts
from cyclopts import Parameter

from pabal.cli.context import cli_actor, run_query, run_transaction, with_hub
from pabal.cli.examples import examples
from pabal.cli.id_argument import IdArgument, resolve_id
from pabal.cli.options import (
    DEFAULT_CONNECTION,
    Connection,
    Json,
    UsageError,
    flag,
    nothing_to_change,
    parse_duration_option,
    repeatable,
)
from pabal.cli.output import local_time, print_fields, print_json, print_rows, print_text, read_all_pages
from pabal.core.duration import format_duration
from pabal.core.short_id import IdPattern
from pabal.db.tx import Tx
from pabal.notifications.id_lookup import match_rule_ids
from pabal.notifications.rules.rules import Rule, RuleDraft, add_rule, find_rule, list_rules, remove_rule, update_rule
from pabal.notifications.states import RecipientType

if TYPE_CHECKING:
    from pabal.hub import Hub

app = cyclopts.App(
    name="rule",
    help="Manage the rules that turn events into notifications.",
    help_epilogue=examples("rule list", "rule disable 01a1e213…ea569f"),
)

PAGE_SIZE = 500
COLUMNS = ("id", "name", "events", "template", "to", "channels", "active")
REQUIRED_OPTIONS = ("events", "template", "to", "channel")
ClearableField = Literal["guild_path", "incident_path", "expires_after"]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class RuleOptions:
    """The fields of a rule, as far as they are given."""

    events: Annotated[str | None, Parameter(help="Event type or pattern: order.paid, order.*.")] = None
    template: Annotated[str | None, Parameter(help="Key of the notification template.")] = None
    to: Annotated[
        list[str] | None, repeatable("Payload path of a recipient: user.discord_id. A list means each of its items.")
    ] = None
    channel: Annotated[list[RecipientType] | None, repeatable("Channel to send to.")] = None
    variable: Annotated[
        list[str] | None, repeatable("NAME=PATH of a template variable that is not at the path of its name.")
    ] = None
    guild_path: Annotated[str | None, Parameter(help="Payload path of the guild.")] = None
    incident_path: Annotated[str | None, Parameter(help="Payload path of the incident.")] = None
    expires_after: Annotated[
        timedelta | None,
        Parameter(
            metavar="DURATION", converter=parse_duration_option, help="Time to live of its notifications: 15m, 2h, 7d."
        ),
    ] = None

    def columns(self) -> dict[str, Any]:
        """The given fields by the name of their column."""
        values = {
            "event_pattern": self.events,
            "template_key": self.template,
            "recipients": self.to,
            "channels": self.channel,
            "variables": None if self.variable is None else dict(map(parse_variable, self.variable)),
            "guild_path": self.guild_path,
            "incident_path": self.incident_path,
            "expires_after": self.expires_after,
        }
        return {name: value for name, value in values.items() if value is not None}


NO_OPTIONS = RuleOptions()


@app.command(name="list", help_epilogue=examples("rule list", "rule list --json"))
def rule_list(*, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """List rules, oldest first."""

    async def read(tx: Tx) -> list[Rule]:
        return await read_all_pages(lambda after: list_rules(tx, after=after, limit=PAGE_SIZE))

    print_rows(run_query(connection, read), COLUMNS, rule_cells, empty="No rules.", json=json)


@app.command(name="show", help_epilogue=examples("rule show 01a1e213…ea569f", "rule show 01a1e213…ea569f --json"))
def rule_show(rule_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Show a rule."""

    async def read(tx: Tx) -> Rule:
        return await find_rule(tx, await resolve_rule_id(tx, rule_id))

    print_rule(run_query(connection, read), json=json)


@app.command(
    name="add",
    help_epilogue=examples(
        "rule add paid --events order.paid --template payment.succeeded --to user.discord_id --channel user_dm",
        "rule add refunds --events 'refund.*' --template payment.refunded --to user.id --channel dashboard_toast",
    ),
)
def rule_add(
    name: Annotated[str, Parameter(name="NAME", help="Name of the rule.")],
    /,
    *,
    options: RuleOptions = NO_OPTIONS,
    disabled: Annotated[bool, flag("Add it disabled, for `pabal rule enable`.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Add a rule for events published from now on. Needs --events, --template, --to and --channel."""
    missing = [f"--{option}" for option in REQUIRED_OPTIONS if getattr(options, option) is None]
    if missing:
        raise UsageError(f"A rule needs {' and '.join(missing)}")

    async def add(hub: "Hub") -> Rule:
        async with hub.transaction() as tx:
            draft = RuleDraft(name=name, is_active=not disabled, **options.columns())
            return await add_rule(tx, hub.templates, draft, cli_actor())

    print_rule(with_hub(connection, add), json=json)


@app.command(
    name="set",
    help_epilogue=examples(
        "rule set 01a1e213…ea569f --template payment.received", "rule set 01a1e213…ea569f --without expires_after"
    ),
)
def rule_set(
    rule_id: IdArgument,
    /,
    *,
    name: Annotated[str | None, Parameter(help="Name of the rule.")] = None,
    options: RuleOptions = NO_OPTIONS,
    without: Annotated[list[ClearableField] | None, repeatable("Clear this field.")] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Change the given fields of a rule, from the next event on."""
    changes = options.columns() | dict.fromkeys(without or ()) | ({} if name is None else {"name": name})
    if not changes:
        raise nothing_to_change("--name", "--events", "--template", "--to", "--channel", "another option")
    print_rule(apply_rule_changes(connection, rule_id, changes), json=json)


@app.command(name="enable", help_epilogue=examples("rule enable 01a1e213…ea569f", "rule enable 01a1e213…ea569f --json"))
def rule_enable(rule_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Enable a rule, from the next event on."""
    print_rule(apply_rule_changes(connection, rule_id, {"is_active": True}), json=json)


@app.command(
    name="disable", help_epilogue=examples("rule disable 01a1e213…ea569f", "rule disable 01a1e213…ea569f --json")
)
def rule_disable(rule_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Disable a rule, from the next event on."""
    print_rule(apply_rule_changes(connection, rule_id, {"is_active": False}), json=json)


@app.command(name="remove", help_epilogue=examples("rule remove 01a1e213…ea569f", "rule remove 01a1e213…ea569f --json"))
def rule_remove(rule_id: IdArgument, /, *, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Remove a rule. Notifications it already requested are still sent."""

    async def remove(tx: Tx) -> UUID:
        row = await resolve_rule_id(tx, rule_id)
        await remove_rule(tx, row, cli_actor())
        return row

    removed_id = run_transaction(connection, remove)
    if json:
        print_json({"removed": str(removed_id)})
    else:
        print_text(f"{removed_id} removed")


app.command(rule_set, name="edit", show=False)  # an earlier name, kept for one version


def apply_rule_changes(connection: Connection, pattern: IdPattern, changes: dict[str, Any]) -> Rule:
    async def update(hub: "Hub") -> Rule:
        async with hub.transaction() as tx:
            row = await resolve_rule_id(tx, pattern)
            return await update_rule(tx, hub.templates, row, changes, cli_actor())

    return with_hub(connection, update)


async def resolve_rule_id(tx: Tx, pattern: IdPattern) -> UUID:
    return await resolve_id(tx, pattern, "rule", match_rule_ids)


def parse_variable(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals:
        raise UsageError(f"--variable {text} is not NAME=PATH")
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
