"""Obey: carry out what a person asks of the hub itself in the chat."""

import math
import secrets
from collections.abc import Sequence
from datetime import timedelta, timezone
from typing import assert_never

from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.relay.arrival import Arrival
from pabal.relay.bearer import digest
from pabal.relay.command import Command, Verb
from pabal.relay.conversations import Conversation, leave
from pabal.relay.figures import Figures
from pabal.relay.pair import Connected, Locked, Wrong, redeem
from pabal.relay.skill import Skill, said
from pabal.relay.texts import texts
from pabal.settings import Settings

Q = beside(__file__)

CODE_LIFE = timedelta(minutes=30)
KEEP = timedelta(minutes=10)
"""How long a repeated webhook gets the first one's answer; /code's has a secret in it, so not for longer."""
KOREA = timezone(timedelta(hours=9))  # where KakaoTalk's users live; it has no summer time
MOST_LABEL = 14
"""Characters Kakao takes on a quick reply."""


async def obey(tx: Tx, arrival: Arrival, command: Command, settings: Settings, figures: Figures) -> Skill:
    """Carry a command out once; whoever repeats it, also at the same time, gets the first answer."""
    conversation = await tx.one(
        Conversation, Q.meet, conversation=arrival.key, channel=arrival.channel, user=arrival.user
    )
    if conversation.state == "BLOCKED":
        return said(texts(settings.chat_language).blocked)
    here = {"channel": arrival.channel, "source_event_id": arrival.source_event_id, "conversation": arrival.key}
    if not await tx.run(Q.begin, **here) and (first := await tx.value(Q.answered, **here)):
        return first
    answer = await Answerer(tx, conversation, settings, figures).to(command)
    await tx.run(Q.remember, **here, answer=answer)
    return answer


class Answerer:
    """Answers one command in one conversation, which is held."""

    def __init__(self, tx: Tx, conversation: Conversation, settings: Settings, figures: Figures) -> None:
        self._tx = tx
        self._conversation = conversation
        self._settings = settings
        self._figures = figures
        self._texts = texts(settings.chat_language)

    async def to(self, command: Command) -> Skill:
        match command.verb:
            case Verb.PAIR:
                return await self._pair(command.rest)
            case Verb.UNPAIR:
                return await self._unpair()
            case Verb.STATUS:
                return await self._status()
            case Verb.CODE:
                return await self._code()
            case Verb.HELP:
                return self._say(self._texts.help, quick=[Verb.STATUS])
            case _:
                assert_never(command.verb)

    async def _pair(self, typed: str) -> Skill:
        if not typed:
            return self._say(self._texts.which_code)
        done = await redeem(
            self._tx, self._conversation, typed, self._figures, approval=self._settings.pairing_approval
        )
        match done:
            case Connected(conversation, replaced):
                if conversation.state == "PENDING":
                    return self._say(self._texts.requested)
                return self._say(self._texts.replaced if replaced else self._texts.paired)
            case Wrong():
                return self._say(self._texts.wrong_code)
            case Locked(wait):
                return self._say(self._texts.locked, minutes=math.ceil(wait / timedelta(minutes=1)))
            case _:
                assert_never(done)

    async def _unpair(self) -> Skill:
        if self._conversation.account_id is None:
            return self._say(self._texts.not_paired)
        await leave(self._tx, self._conversation)
        return self._say(self._texts.unpaired)

    async def _status(self) -> Skill:
        account, since = self._conversation.account_id, self._conversation.paired_at
        if account is None:
            return self._say(self._texts.hint, quick=[Verb.HELP])
        if self._conversation.state == "PENDING" or since is None:
            return self._say(self._texts.pending)
        if await self._tx.value(Q.is_disabled, account=account):
            return self._say(self._texts.disabled)
        waiting = await self._tx.value(Q.waiting, account=account, conversation=self._conversation.conversation_key)
        on = f"{since.astimezone(KOREA):%Y-%m-%d %H:%M}"
        return self._say(self._texts.standing_busy if waiting else self._texts.standing, since=on, waiting=waiting)

    async def _code(self) -> Skill:
        """A page of the conversation's own: a new code ends the one before."""
        code = secrets.token_urlsafe(16)
        key = self._conversation.conversation_key
        await self._tx.run(Q.end_codes, conversation=key)
        await self._tx.run(Q.new_code, code_hash=digest(code), conversation=key, life=CODE_LIFE)
        return self._say(self._texts.code, link=f"{self._settings.issuer}/chat?code={code}")

    def _say(self, text: str, *, quick: Sequence[Verb] = (), **facts: object) -> Skill:
        prefix = self._settings.command_prefix
        words = [word for word in (f"{prefix}{verb}" for verb in quick) if len(word) <= MOST_LABEL]
        return said(text.format(prefix=prefix, **facts), quick=words)


async def forget_answers(tx: Tx, batch: int) -> int:
    return await tx.run(Q.forget_answers, keep=KEEP, batch=batch)


async def forget_codes(tx: Tx, batch: int) -> int:
    return await tx.run(Q.forget_codes, batch=batch)
