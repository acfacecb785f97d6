"""Signals for webhooks that are held open: one that comes before its waiter is kept, in bounded memory."""

import pytest

from pabal.core.ids import new_id
from pabal.hub import Hub
from pabal.relay.reply.answer_signals import MAX_EARLY_SIGNALS, AnswerStep

pytestmark = pytest.mark.anyio


async def test_repeated_signals_do_not_displace_the_one_of_a_waiter_that_comes_later(hub: Hub) -> None:
    signals = hub.relay.answer_signals
    ours, theirs = new_id(), new_id()
    signals.send(AnswerStep.STORED, ours)

    for _ in range(MAX_EARLY_SIGNALS):
        signals.send(AnswerStep.STORED, theirs)

    with signals.waiting(AnswerStep.STORED, ours) as stored:
        assert stored.is_set()


async def test_the_oldest_signal_is_forgotten_first(hub: Hub) -> None:
    signals = hub.relay.answer_signals
    oldest, *_, newest = messages = [new_id() for _ in range(MAX_EARLY_SIGNALS + 1)]

    for message in messages:
        signals.send(AnswerStep.STORED, message)

    with signals.waiting(AnswerStep.STORED, oldest) as first, signals.waiting(AnswerStep.STORED, newest) as last:
        assert (first.is_set(), last.is_set()) == (False, True)
