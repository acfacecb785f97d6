"""`pabal notify send`: ask for a notice, or see what would become of it."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Any, assert_never

import cyclopts
import msgspec
from cyclopts import Parameter

from pabal.cli import screen, template, wide
from pabal.cli.errand import actor, errand
from pabal.cli.event import brought
from pabal.cli.options import DatabaseUrl, DataDir, Json, span
from pabal.cli.services import named
from pabal.core.actor import Actor
from pabal.core.errors import Failed
from pabal.db.faults import Orphan
from pabal.db.tx import Tx
from pabal.notifications.plan import Channel, Decision, Later, Send, Suppress
from pabal.notifications.reasons import Language, steps_in_words
from pabal.notifications.rehearse import Rehearsal, clock, rehearse
from pabal.notifications.request import Asked, Draft, ask
from pabal.wiring import Hub


def exactly_one(said: cyclopts.ArgumentCollection) -> None:
    if len(said.filter_by(value_set=True)) != 1:
        raise ValueError("Say one of --dm, --audit-channel and --toast.")


ONE_OF = cyclopts.Group("Where to", validator=exactly_one)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Whither:
    """Where a notice goes."""

    dm: Annotated[str | None, Parameter(group=ONE_OF, help="As a direct message to this Discord user.")] = None
    audit_channel: Annotated[str | None, Parameter(group=ONE_OF, help="Into this Discord channel.")] = None
    toast: Annotated[str | None, Parameter(group=ONE_OF, help="Into this Discord user's dashboard.")] = None

    @property
    def address(self) -> tuple[Channel, str]:
        if self.dm is not None:
            return Channel.USER_DM, self.dm
        if self.audit_channel is not None:
            return Channel.GUILD_AUDIT_CHANNEL, self.audit_channel
        return Channel.DASHBOARD_TOAST, self.toast or ""


NOWHERE = Whither()


def send(
    key: Annotated[str, Parameter(name="TEMPLATE", help="What it says: payment.succeeded")],
    /,
    *,
    whither: Whither = NOWHERE,
    payload: Annotated[
        str,
        Parameter(allow_leading_hyphen=True, help="A JSON object; @FILE reads it from a file, - from standard input."),
    ] = "{}",
    locale: Annotated[str | None, Parameter(help="The language. Default: the recipient's, or the hub's.")] = None,
    send_in: Annotated[timedelta | None, Parameter(converter=span, help="Not before: 90s, 15m, 2h, 7d.")] = None,
    expires_in: Annotated[
        timedelta | None, Parameter(converter=span, help="How late it may be; an emergency is never too late.")
    ] = None,
    incident: Annotated[str | None, Parameter(help="Emergencies of one incident are told once a minute.")] = None,
    source: Annotated[
        str | None, Parameter(help="The service that asks. Default: the person at this terminal.")
    ] = None,
    idempotency_key: Annotated[
        str | None, Parameter(name="--key", help="The same key of the same source is asked for once.")
    ] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Show what would be decided and said; send nothing.")] = False,
    language: Annotated[Language, Parameter(help="In which language a dry run gives its reasons.")] = "en",
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Ask for a notice. When this says so, it is recorded; what nobody wants is recorded as suppressed."""
    variables: dict[str, Any] = msgspec.json.decode(brought(payload))
    channel, recipient = whither.address

    async def do(hub: Hub) -> tuple[Draft, Asked | Rehearsal]:
        async with hub.transaction() as tx:
            if source is not None:
                await named(tx, source)
            due = await clock(tx) + (send_in or timedelta())
            draft = Draft(
                channel=channel,
                recipient=recipient,
                template=hub.catalogue.get(key),
                payload=variables,
                locale=locale,
                scheduled_at=due if send_in else None,
                expires_at=due + expires_in if expires_in else None,
                idempotency_key=idempotency_key,
                incident=incident,
                source=source,
            )
            if dry_run:
                return draft, await rehearse(tx, draft, hub.settings.chat_language)
            return draft, await recorded(tx, draft)

    draft, became = errand(do, data_dir=data_dir, database_url=database_url)
    match became:
        case Asked():
            screen.as_json(asdict(became)) if json else say_asked(became)
        case Rehearsal():
            screen.as_json(rehearsed(became)) if json else say_rehearsed(draft, became, language)


async def recorded(tx: Tx, draft: Draft) -> Asked:
    try:
        [asked] = await ask(tx, [draft], Actor(actor()))
    except Orphan:
        raise Failed(
            f"the database does not know {draft.template.key} yet: a hub registers it when it starts"
        ) from None
    return asked


def say_asked(asked: Asked) -> None:
    if asked.repeated:
        screen.say(f"notification {asked.id} was asked for under this key before; it is {asked.state}")
    elif asked.reason:
        screen.say(
            f"notification {asked.id} is suppressed: {asked.reason}; `pabal notify explain {asked.id}` says more"
        )
    else:
        screen.say(f"notification {asked.id} is recorded; it is due {wide.local(asked.scheduled_at)}")


def say_rehearsed(draft: Draft, rehearsal: Rehearsal, language: Language) -> None:
    screen.say(would(rehearsal.decision), "bold")
    for says in steps_in_words(rehearsal.decision.steps, draft.template.category, language):
        screen.say(f"  {says}")
    template.show_text(f"{draft.channel} {rehearsal.locale}", rehearsal.rendered)


def rehearsed(rehearsal: Rehearsal) -> dict[str, Any]:
    decision = rehearsal.decision
    return {
        "would": {Send: "send", Suppress: "suppress", Later: "wait"}[type(decision)],
        "reason": decision.reason if isinstance(decision, Suppress) else None,
        "until": decision.until if isinstance(decision, Later) else None,
        "steps": decision.steps,
        "locale": rehearsal.locale,
        **asdict(rehearsal.rendered),
    }


def would(decision: Decision) -> str:
    match decision:
        case Send():
            return "it would be sent"
        case Suppress(reason):
            return f"it would be suppressed: {reason}"
        case Later(until):
            return f"it would wait until {wide.local(until)}"
        case _:
            assert_never(decision)
