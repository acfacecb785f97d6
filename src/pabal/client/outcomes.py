"""What a handler may say besides "done": returned or raised, as it likes."""


class HandlerOutcome(Exception):
    """Something a handler says about the event it was given."""

    def __init__(self, error: str) -> None:
        self.error = error
        super().__init__(error)


class Retry(HandlerOutcome):
    """Not this time; again after `after` seconds, or when the backoff says so."""

    def __init__(self, error: str, delay: float | None = None) -> None:
        self.delay = delay
        super().__init__(error)


class Dead(HandlerOutcome):
    """Never: it becomes a dead letter now."""


class Snooze(HandlerOutcome):
    """Not now, and nobody's fault: again after `after` seconds, and no attempt is spent."""

    def __init__(self, reason: str, delay: float) -> None:
        self.delay = delay
        super().__init__(reason)
