"""The relay's numbers, by the names the specification gives them, and one alarm."""

from collections.abc import Iterator

from opentelemetry.metrics import CallbackOptions, Meter, Observation


class RelayCounter:
    """A number that only grows, of each outcome where there are several.

    It is told when somebody asks, so counting is an addition and nothing more.
    """

    def __init__(self, meter: Meter, name: str, description: str) -> None:
        self._values: dict[str, int] = {}
        meter.create_observable_counter(f"relay.{name}", [self._observe], "1", description)

    def add(self, count: int, outcome: str = "") -> None:
        self._values[outcome] = self._values.get(outcome, 0) + count

    def _observe(self, _options: CallbackOptions) -> Iterator[Observation]:
        for outcome, number in self._values.items():
            yield Observation(number, {"outcome": outcome} if outcome else None)


class RelayMetrics:
    """What the relay counts as it happens."""

    def __init__(self, meter: Meter) -> None:
        self.webhooks_received = RelayCounter(meter, "webhook.received", "Webhooks that came.")
        self.messages_queued = RelayCounter(meter, "message.queued", "Messages put into an account's queue.")
        self.messages_delivered = RelayCounter(meter, "message.delivered", "Messages handed to a client.")
        self.messages_expired = RelayCounter(meter, "message.expired", "Messages nobody fetched in time.")
        self.callbacks_sent = RelayCounter(meter, "callback.sent", "Answers Kakao took.")
        self.callbacks_failed = RelayCounter(
            meter, "callback.failed", "Answers Kakao refused, or of which nothing was heard."
        )
        self.pairing_codes_created = RelayCounter(meter, "pairing.created", "Pairing codes made.")
        self.pairings_verified = RelayCounter(meter, "pairing.verified", "Pairings that were completed.")
        self.code_guessing_alarms = RelayCounter(
            meter, "pairing.alarm", "Wrong codes on a channel that had far too many before."
        )
