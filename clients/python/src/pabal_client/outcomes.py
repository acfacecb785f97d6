"""The outcomes of a handler besides success. A handler may return or raise them."""


class HandlerOutcome(Exception):
    """The base class of the outcomes."""

    def __init__(self, error: str) -> None:
        self.error = error
        super().__init__(error)


class Retry(HandlerOutcome):
    """Try again after `delay` seconds; without it, after the backoff."""

    def __init__(self, error: str, delay: float | None = None) -> None:
        self.delay = delay
        super().__init__(error)


class Dead(HandlerOutcome):
    """Give up: the event becomes a dead letter now."""


class Snooze(HandlerOutcome):
    """Try again after `delay` seconds, without counting an attempt."""

    def __init__(self, reason: str, delay: float) -> None:
        self.delay = delay
        super().__init__(reason)
