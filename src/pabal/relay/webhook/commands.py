"""Chat commands: what a user asks of the hub itself in the chat."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta, timezone
from enum import StrEnum
from typing import Any, assert_never

from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.relay.accounts import SESSION_ACCOUNT_PREFIX
from pabal.relay.auth import hash_relay_secret
from pabal.relay.conversations import Conversation, unpair_locked_conversation
from pabal.relay.encryption.encrypted_values import COMMAND_COLUMN
from pabal.relay.encryption.message_cipher import MessageCipher
from pabal.relay.metrics import RelayMetrics
from pabal.relay.pairing.pair import (
    CodeAccepted,
    CodeEntryLocked,
    CodeRejected,
    count_unknown_wrong_code,
    is_pairing_code_live,
    redeem_pairing_code,
)
from pabal.relay.reply.callback import LATE_REPLY_RETENTION
from pabal.relay.reply.reply import claim_late_outputs
from pabal.relay.reply.validate import MAX_OUTPUTS
from pabal.relay.webhook.payload import InboundPayload
from pabal.relay.webhook.receive import POLL_MEMORY
from pabal.relay.webhook.skill_response import (
    ENGLISH_TEXTS,
    KOREAN_TEXTS,
    SkillResponseDict,
    chat_texts,
    text_response,
)
from pabal.settings import Settings


class ChatCommandName(StrEnum):
    PAIR = "pair"
    UNPAIR = "unpair"
    STATUS = "status"
    HELP = "help"
    CODE = "code"
    ANSWER = "answer"
    """Fetches an answer. Sent by a button, not typed."""


TYPED_COMMANDS = tuple(name for name in ChatCommandName if name is not ChatCommandName.ANSWER)
ANSWER_BUTTONS = frozenset({KOREAN_TEXTS.check_answer, ENGLISH_TEXTS.check_answer})


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """A parsed command. Only `pair` takes an argument."""

    name: ChatCommandName
    argument: str = ""


def parse_chat_command(text: str, prefix: str) -> ChatCommand | None:
    """The command in a text; None for any other text, which goes to the bot."""
    stripped = text.strip()
    if stripped[: len(prefix)].casefold() != prefix.casefold():
        return None
    command_text = stripped[len(prefix) :]
    word, *arguments = command_text.split(None, 1) or [""]
    name = next((name for name in TYPED_COMMANDS if name == word.casefold()), None)
    if name is None or command_text[0].isspace() or (arguments and name is not ChatCommandName.PAIR):
        return None
    return ChatCommand(name, *arguments)


Q = load_queries(__file__)

CHAT_PAGE_CODE_LIFETIME = timedelta(minutes=30)
COMMAND_RESPONSE_RETENTION = timedelta(minutes=10)
"""How long a repeated webhook gets the first response again. Short, because the response to `code` holds a secret."""
COMMANDS_WITH_SECRET = frozenset({ChatCommandName.CODE, ChatCommandName.UNPAIR})
"""Refused while the webhook is open: any program could send them in the name of any user."""
KOREA = timezone(timedelta(hours=9))  # KakaoTalk's users; no daylight saving time
MAX_COUNTED_MESSAGES = 1000
"""Newest messages of a conversation that `status` counts."""
MAX_OUTSTANDING_MESSAGES = 20
"""Newest messages of a conversation whose answers a user may wait for."""
MAX_QUICK_REPLY_LENGTH = 14
"""Characters that Kakao allows on a quick reply."""


@dataclass(frozen=True, slots=True)
class BotStatus:
    """A user's bot, and the counts of the user's messages and replies today."""

    name: str
    is_disabled: bool
    is_online: bool
    messages: int
    replies: int
    waiting: int


def is_answer_button(text: str) -> bool:
    """Whether a text may be the button that fetches an answer. A user may also type it."""
    return text.strip() in ANSWER_BUTTONS


async def find_answer_request(tx: Tx, payload: InboundPayload) -> ChatCommand | None:
    """The command of the button, if there is an answer to fetch or to wait for; None if the text is for the bot.

    A repeated webhook is what the first one was.
    """
    is_request = await has_outstanding_answer(tx, payload.conversation_key, payload.channel, payload.source_event_id)
    return ChatCommand(ChatCommandName.ANSWER) if is_request else None


async def has_outstanding_answer(
    tx: Tx, conversation_key: str, channel: str | None = None, source_event_id: str | None = None
) -> bool:
    """Whether a conversation has an answer to show or to wait for; of a webhook, whether it asks for one."""
    return await tx.value(
        Q.has_outstanding_answer,
        conversation=conversation_key,
        channel=channel,
        source_event_id=source_event_id,
        span=LATE_REPLY_RETENTION,
        max_messages=MAX_OUTSTANDING_MESSAGES,
    )


async def run_chat_command(
    tx: Tx,
    payload: InboundPayload,
    command: ChatCommand,
    settings: Settings,
    metrics: RelayMetrics,
    cipher: MessageCipher | None = None,
) -> SkillResponseDict:
    """Run a command once. A repeated webhook, even a concurrent one, gets the first response."""
    conversation = await tx.one(
        Conversation,
        Q.lock_or_create_conversation,
        conversation=payload.conversation_key,
        channel=payload.channel,
        user=payload.user_key,
    )
    if conversation.state == "BLOCKED":
        return text_response(chat_texts(settings.chat_language).blocked)
    webhook = {
        "channel": payload.channel,
        "source_event_id": payload.source_event_id,
        "conversation": payload.conversation_key,
    }
    row = f"{payload.channel}:{payload.source_event_id}".encode()
    if not await tx.run(Q.insert_command, **webhook) and (first := await tx.value(Q.find_command_response, **webhook)):
        return await cipher.decrypt_answer(tx, COMMAND_COLUMN, row, first) if cipher else first
    handler = ChatCommandHandler(tx, conversation, settings, metrics, cipher)
    response = await handler.handle(command)
    if handler.keeps_response:
        stored: dict[str, Any] = response
        if cipher is not None and conversation.account_id is not None:
            stored = await cipher.encrypt_answer(tx, conversation.account_id, COMMAND_COLUMN, row, response)
        await tx.run(Q.save_command_response, **webhook, answer=stored)
    return response


async def run_unknown_user_command(
    tx: Tx,
    payload: InboundPayload,
    command: ChatCommand,
    settings: Settings,
    metrics: RelayMetrics,
    cipher: MessageCipher | None = None,
) -> SkillResponseDict:
    """Answer a command of a user whose conversation is not stored. Only a valid pairing code stores it."""
    texts, prefix = chat_texts(settings.chat_language), settings.command_prefix
    match command.name:
        case ChatCommandName.PAIR if not command.argument:
            text = texts.code_missing
        case ChatCommandName.PAIR:
            if await is_pairing_code_live(tx, command.argument):
                return await run_chat_command(tx, payload, command, settings, metrics, cipher)
            await count_unknown_wrong_code(tx, metrics)
            text = texts.wrong_code
        case ChatCommandName.UNPAIR:
            text = texts.not_paired
        case ChatCommandName.HELP:
            text = texts.help
        case ChatCommandName.STATUS | ChatCommandName.CODE | ChatCommandName.ANSWER:
            text = texts.hint
        case _:
            assert_never(command.name)
    return text_response(text.format(prefix=prefix))


class ChatCommandHandler:
    """Runs one command in a conversation whose row is locked."""

    def __init__(
        self,
        tx: Tx,
        conversation: Conversation,
        settings: Settings,
        metrics: RelayMetrics,
        cipher: MessageCipher | None = None,
    ) -> None:
        self._tx = tx
        self._conversation = conversation
        self._settings = settings
        self._metrics = metrics
        self._cipher = cipher
        self._texts = chat_texts(settings.chat_language)
        self.keeps_response = True
        """Whether a repeated webhook gets this response again; otherwise the command is run again."""

    async def handle(self, command: ChatCommand) -> SkillResponseDict:
        if self._settings.webhook_open and command.name in COMMANDS_WITH_SECRET:
            return self._respond(self._texts.command_unavailable)
        return await self._run(command)

    async def _run(self, command: ChatCommand) -> SkillResponseDict:
        match command.name:
            case ChatCommandName.PAIR:
                return await self._pair(command.argument)
            case ChatCommandName.UNPAIR:
                return await self._unpair()
            case ChatCommandName.STATUS:
                return await self._status()
            case ChatCommandName.CODE:
                return await self._issue_page_code()
            case ChatCommandName.ANSWER:
                return await self._fetch_answer()
            case ChatCommandName.HELP:
                return self._respond(self._texts.help, quick_replies=[ChatCommandName.STATUS])
            case _:
                assert_never(command.name)

    async def _pair(self, code: str) -> SkillResponseDict:
        if not code:
            return self._respond(self._texts.code_missing)
        redemption = await redeem_pairing_code(
            self._tx,
            self._conversation,
            code,
            self._metrics,
            requires_approval=self._settings.pairing_approval,
            rate_limit=self._settings.account_rate_limit,
        )
        match redemption:
            case CodeAccepted(conversation, replaced):
                if conversation.state == "PENDING":
                    return self._respond(self._texts.approval_requested)
                return self._respond(self._texts.replaced if replaced else self._texts.paired)
            case CodeRejected():
                return self._respond(self._texts.wrong_code)
            case CodeEntryLocked(retry_after):
                return self._respond(self._texts.locked, minutes=math.ceil(retry_after / timedelta(minutes=1)))
            case _:
                assert_never(redemption)

    async def _unpair(self) -> SkillResponseDict:
        if self._conversation.account_id is None:
            return self._respond(self._texts.not_paired)
        await unpair_locked_conversation(self._tx, self._conversation)
        return self._respond(self._texts.unpaired)

    async def _status(self) -> SkillResponseDict:
        account, paired_at = self._conversation.account_id, self._conversation.paired_at
        if account is None:
            return self._respond(self._texts.hint, quick_replies=[ChatCommandName.HELP])
        if self._conversation.state == "PENDING" or paired_at is None:
            return self._respond(self._texts.pending)
        status = await self._tx.one(
            BotStatus,
            Q.find_bot_status,
            account=account,
            conversation=self._conversation.conversation_key,
            poll_span=POLL_MEMORY,
            max_counted=MAX_COUNTED_MESSAGES,
        )
        if status.is_disabled:
            return self._respond(self._texts.disabled)
        return self._respond(
            self._texts.status_online if status.is_online else self._texts.status_offline,
            bot=self._texts.unnamed_bot if status.name.startswith(SESSION_ACCOUNT_PREFIX) else status.name,
            since=f"{paired_at.astimezone(KOREA):%Y-%m-%d %H:%M}",
            messages=status.messages,
            replies=status.replies,
            waiting=status.waiting,
        )

    async def _fetch_answer(self) -> SkillResponseDict:
        """Show the late replies, and the button as long as there are more to come."""
        key, texts = self._conversation.conversation_key, self._texts
        outputs = (await claim_late_outputs(self._tx, key, MAX_OUTPUTS, None, self._cipher)).outputs
        is_outstanding = await has_outstanding_answer(self._tx, key)
        self.keeps_response = bool(outputs)
        text = texts.not_ready if is_outstanding else texts.nothing_to_check
        response = text_response(text, quick_replies=[texts.check_answer] if is_outstanding else [])
        if outputs:
            response["template"]["outputs"] = outputs
        return response

    async def _issue_page_code(self) -> SkillResponseDict:
        """Link to the conversation's own page. A new code replaces the previous one."""
        code = secrets.token_urlsafe(16)
        key = self._conversation.conversation_key
        await self._tx.run(Q.delete_chat_page_codes, conversation=key)
        await self._tx.run(
            Q.insert_chat_page_code, code_hash=hash_relay_secret(code), conversation=key, life=CHAT_PAGE_CODE_LIFETIME
        )
        return self._respond(self._texts.page_link, link=f"{self._settings.issuer}/chat?code={code}")

    def _respond(
        self, text: str, *, quick_replies: Sequence[ChatCommandName] = (), **values: object
    ) -> SkillResponseDict:
        prefix = self._settings.command_prefix
        commands = [f"{prefix}{name}" for name in quick_replies]
        fitting = [command for command in commands if len(command) <= MAX_QUICK_REPLY_LENGTH]
        return text_response(text.format(prefix=prefix, **values), quick_replies=fitting)


async def purge_command_responses(tx: Tx, batch: int) -> int:
    return await tx.run(Q.purge_command_responses, keep=COMMAND_RESPONSE_RETENTION, batch=batch)


async def purge_chat_page_codes(tx: Tx, batch: int) -> int:
    return await tx.run(Q.purge_chat_page_codes, batch=batch)
