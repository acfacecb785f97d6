"""The relay's numbers, by the names the specification gives them, and one alarm."""

from collections.abc import Iterator

from opentelemetry.metrics import CallbackOptions, Meter, Observation


class Count:
    """A number that only grows, of each outcome where there are several.

    It is told when somebody asks, so counting is an addition and nothing more.
    """

    def __init__(self, meter: Meter, name: str, told: str) -> None:
        self._numbers: dict[str, int] = {}
        meter.create_observable_counter(f"relay.{name}", [self._tell], "1", told)

    def add(self, many: int, outcome: str = "") -> None:
        self._numbers[outcome] = self._numbers.get(outcome, 0) + many

    def _tell(self, _options: CallbackOptions) -> Iterator[Observation]:
        for outcome, number in self._numbers.items():
            yield Observation(number, {"outcome": outcome} if outcome else None)


class Figures:
    """What the relay counts as it happens."""

    def __init__(self, meter: Meter) -> None:
        self.received = Count(meter, "webhook.received", "Webhooks that came.")
        self.queued = Count(meter, "message.queued", "Messages put into an account's queue.")
        self.delivered = Count(meter, "message.delivered", "Messages handed to a client.")
        self.expired = Count(meter, "message.expired", "Messages nobody fetched in time.")
        self.sent = Count(meter, "callback.sent", "Answers Kakao took.")
        self.failed = Count(meter, "callback.failed", "Answers Kakao refused, or of which nothing was heard.")
        self.created = Count(meter, "pairing.created", "Pairing codes made.")
        self.verified = Count(meter, "pairing.verified", "Pairings that were completed.")
        self.alarm = Count(meter, "pairing.alarm", "Wrong codes on a channel that had far too many before.")
