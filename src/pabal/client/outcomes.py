"""What a handler may say besides "done": returned or raised, as it likes."""


class Said(Exception):
    """Something a handler says about the event it was given."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class Retry(Said):
    """Not this time; again after `after` seconds, or when the backoff says so."""

    def __init__(self, why: str, after: float | None = None) -> None:
        self.after = after
        super().__init__(why)


class Dead(Said):
    """Never: it becomes a dead letter now."""


class Snooze(Said):
    """Not now, and nobody's fault: again after `after` seconds, and no attempt is spent."""

    def __init__(self, why: str, after: float) -> None:
        self.after = after
        super().__init__(why)
