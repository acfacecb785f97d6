"""Links between Discord accounts and registered users.

A person links their own account: they begin in their session as a registered user, the Discord account gets a one-time
link in a direct message, and the same session confirms it. A service can assert a link, which applies to what it sends.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from pabal import limits
from pabal.audit.pseudonym import person_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.core.secrets import hash_token
from pabal.db.errors import ForeignKeyViolation
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.limits import RateLimit
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.decision.texts import BilingualText, ExplanationLanguage, format_bilingual
from pabal.notifications.dispatch.discord import DiscordMessage, MessageSender
from pabal.notifications.dispatch.outcome import NotificationSent
from pabal.notifications.people.preferences import (
    Preferences,
    link_discord_account,
    load_preferences,
    unlink_discord_account,
)
from pabal.notifications.people.tokens import Person, revoke_user_tokens
from pabal.notifications.toasts.inbox import notify_toast_streams

Q = load_queries(__file__)

LINK_TITLE: BilingualText = ("Discord 계정 연결", "Link your Discord account")
LINK_TEXT: BilingualText = (
    """\
이 Discord 계정을 가입한 계정과 연결해 달라는 요청을 받았어요.
직접 요청했다면 15분 안에, 요청을 시작한 브라우저에서 링크를 열어 주세요.
{url}
직접 요청하지 않았다면 무시해 주세요.""",
    """\
A registered user asked to link this Discord account.
If it was you, open the link within 15 minutes, in the browser where you began.
{url}
If it was not you, ignore this message.""",
)
LINK_PAGE_PATH = "/me/link/confirm"
"""The page that the direct message leads to."""
LINK_REQUEST_LIFETIME = timedelta(minutes=15)
LINK_REQUESTS_PER_USER = RateLimit("link requests of this user", 10, timedelta(hours=1))
"""Without it, one user could have the bot write to any number of accounts, for which Discord blocks bots."""
LINK_REQUESTS_PER_ACCOUNT = RateLimit("link requests for this Discord account", 3, timedelta(hours=1))
MAX_SERVICE_LINKS = 100
MAX_DISCORD_ID_LENGTH = 20


@dataclass(frozen=True, slots=True)
class ServiceLink:
    """A link that a service asserts."""

    service_name: str
    discord_id: str
    user_id: UUID
    created_at: datetime


async def assert_service_link(tx: Tx, service: str, discord_id: str, user_id: UUID, actor: Actor) -> ServiceLink:
    """Record that a service names a registered user for a Discord account. Its former assertion is replaced."""
    try:
        link = await tx.one(ServiceLink, Q.upsert_service_link, service=service, discord=discord_id, user=user_id)
    except ForeignKeyViolation:
        raise NotFound("No such user") from None
    await record_action(tx, actor, "preferences.link_asserted", person_pseudonym(discord_id), user=str(user_id))
    return link


async def withdraw_service_link(tx: Tx, service: str, discord_id: str, actor: Actor) -> None:
    """Remove the link that the service asserted."""
    if not await tx.run(Q.delete_service_link, service=service, discord=discord_id):
        raise NotFound("This service has asserted no link for the account")
    await record_action(tx, actor, "preferences.link_withdrawn", person_pseudonym(discord_id))


async def list_service_links(tx: Tx, discord_id: str) -> list[ServiceLink]:
    """The links that services assert for a Discord account."""
    return await tx.all(ServiceLink, Q.list_service_links, discord=discord_id, limit=MAX_SERVICE_LINKS)


async def unlink_account(tx: Tx, discord_id: str, actor: Actor, *, reason: str | None = None) -> Preferences:
    """Undo a link, and end the sessions of the user: they would still show the account's notifications."""
    user_id = (await load_preferences(tx, discord_id)).user_id
    preferences = await unlink_discord_account(tx, discord_id, actor, reason=reason)
    if user_id is not None:
        await revoke_user_tokens(tx, user_id)
        notify_toast_streams(tx, discord_id)
    return preferences


async def confirm_link_request(tx: Tx, person: Person, code: str, actor: Actor) -> Preferences:
    """Link the account that got the code, if this session requested it."""
    discord_id = person.user_id and await tx.value(
        Q.use_link_request, code_hash=hash_link_code(code), user=person.user_id, session=person.token_hash
    )
    if person.user_id is None or discord_id is None:
        raise NotFound("The code is unknown, expired or from another session")
    return await link_discord_account(tx, discord_id, person.user_id, actor)


async def purge_link_requests(tx: Tx, batch: int) -> int:
    """Delete expired requests. Return how many."""
    return await tx.run(Q.purge_link_requests, batch=batch)


class LinkRequester:
    """Sends the one-time links. The code is only in the direct message, so it does not pass through the lane."""

    def __init__(self, db: Database, sender: MessageSender, page_url: str) -> None:
        self._db = db
        self._sender = sender
        self._page_url = page_url

    async def request_link(self, person: Person, discord_id: str, language: ExplanationLanguage) -> None:
        """Send a one-time link to the Discord account. Not sent if the account has turned off direct messages."""
        if person.user_id is None or person.owner != person.user_id:
            raise Conflict("Only a registered user without a linked account can link one")
        if not (discord_id.isascii() and discord_id.isdigit() and len(discord_id) <= MAX_DISCORD_ID_LENGTH):
            raise Invalid.of_field("discord_id", f"must have 1 to {MAX_DISCORD_ID_LENGTH} digits")
        if not self._sender.has_transport:
            raise Conflict("Direct messages cannot be sent: this hub has no Discord token. Ask its operator.")
        async with self._db.autocommit() as tx:
            await limits.consume_rate_limit(tx, LINK_REQUESTS_PER_USER, str(person.user_id))
            await limits.consume_rate_limit(tx, LINK_REQUESTS_PER_ACCOUNT, discord_id)
        code = secrets.token_hex(32)  # no character that Discord would format
        async with self._db.transaction() as tx:
            await tx.run(
                Q.insert_link_request,
                code_hash=hash_link_code(code),
                user=person.user_id,
                discord=discord_id,
                session=person.token_hash,
                life=LINK_REQUEST_LIFETIME,
            )
            account = await load_preferences(tx, discord_id)
            dm_channel = await tx.value(Q.find_dm_channel, discord=discord_id)
        if account.dm_enabled:
            await self._send_code(discord_id, dm_channel, code, language)

    async def _send_code(
        self, discord_id: str, dm_channel: str | None, code: str, language: ExplanationLanguage
    ) -> None:
        request_id = new_id()
        outcome = await self._sender.send(
            DiscordMessage(
                notification_id=request_id,
                channel=NotificationChannel.USER_DM,
                recipient=discord_id,
                dm_channel=dm_channel,
                title=format_bilingual(LINK_TITLE, language),
                body=format_bilingual(LINK_TEXT, language, url=f"{self._page_url}?code={code}"),
                nonce=request_id.hex[:25],
                urgent=False,
                address_unhealthy=False,
            )
        )
        if not isinstance(outcome, NotificationSent):
            raise Conflict("The direct message could not be sent. Check the Discord id and try again later.")


def hash_link_code(code: str) -> str:
    return hash_token(code).hex()
