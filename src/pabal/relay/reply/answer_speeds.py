"""How fast the bots of accounts have answered lately, as far as this process knows."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from uuid import UUID

MAX_REMEMBERED_ACCOUNTS = 10_000
"""Accounts whose answers are kept in memory; the one that answered least recently is forgotten first."""
MIN_ANSWERS = 5
"""Answers in a row that make a bot fast or slow."""
ANSWER_MEMORY = timedelta(minutes=30)
"""Older answers do not count."""
FAST_ANSWER = timedelta(seconds=1.5)
SLOW_ANSWER = timedelta(seconds=3.5)


@dataclass(frozen=True, slots=True)
class RecentAnswer:
    """How long after its message an answer came, and the monotonic time at which it did."""

    delay: timedelta
    answered_at: float


@dataclass(slots=True)
class AnswerSpeeds:
    """The delays of each account's last answers.

    Replies are spread over the processes of a hub, so the replies that one process takes are a sample of all.
    """

    clock: Callable[[], float] = monotonic
    _answers: dict[UUID, deque[RecentAnswer]] = field(default_factory=dict[UUID, deque[RecentAnswer]])

    def observe(self, account_id: UUID, delay: timedelta) -> None:
        """Remember an answer, or with `SLOW_ANSWER` or more that none came in time."""
        answers = self._answers.pop(account_id, None) or deque[RecentAnswer](maxlen=MIN_ANSWERS)
        answers.append(RecentAnswer(delay, self.clock()))
        self._answers[account_id] = answers
        if len(self._answers) > MAX_REMEMBERED_ACCOUNTS:
            del self._answers[next(iter(self._answers))]

    def fast_delay(self, account_id: UUID | None) -> timedelta | None:
        """The longest of the last delays if all were short; None for a bot that is not known to be fast."""
        delays = self._recent_delays(account_id)
        return max(delays) if len(delays) == MIN_ANSWERS and max(delays) <= FAST_ANSWER else None

    def is_slow(self, account_id: UUID | None) -> bool:
        """Whether none of the last answers would have come in time."""
        delays = self._recent_delays(account_id)
        return len(delays) == MIN_ANSWERS and min(delays) >= SLOW_ANSWER

    def _recent_delays(self, account_id: UUID | None) -> list[timedelta]:
        answers = self._answers.get(account_id, ()) if account_id else ()
        oldest = self.clock() - ANSWER_MEMORY.total_seconds()
        return [answer.delay for answer in answers if answer.answered_at >= oldest]
