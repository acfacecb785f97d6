"""The relay's metrics."""

from collections.abc import Iterator

from opentelemetry.metrics import CallbackOptions, Meter, Observation


class RelayCounter:
    """A counter, optionally split by outcome. Adding is one dictionary update; values are read at collection."""

    def __init__(self, meter: Meter, name: str, description: str) -> None:
        self._values: dict[str, int] = {}
        meter.create_observable_counter(f"relay.{name}", [self._observe], "1", description)

    def add(self, count: int, outcome: str = "") -> None:
        self._values[outcome] = self._values.get(outcome, 0) + count

    def _observe(self, _options: CallbackOptions) -> Iterator[Observation]:
        for outcome, value in self._values.items():
            yield Observation(value, {"outcome": outcome} if outcome else None)


class RelayMetrics:
    """The counters of one process."""

    def __init__(self, meter: Meter) -> None:
        self.webhooks_received = RelayCounter(meter, "webhook.received", "Webhooks received.")
        self.messages_queued = RelayCounter(meter, "message.queued", "Messages queued.")
        self.messages_delivered = RelayCounter(meter, "message.delivered", "Messages delivered to a bot.")
        self.messages_expired = RelayCounter(
            meter, "message.expired", "Messages that expired before a bot acknowledged them."
        )
        self.callbacks_sent = RelayCounter(meter, "callback.sent", "Replies accepted by Kakao.")
        self.callbacks_failed = RelayCounter(meter, "callback.failed", "Replies that Kakao refused or did not confirm.")
        self.pairing_codes_created = RelayCounter(meter, "pairing.created", "Pairing codes created.")
        self.pairings_verified = RelayCounter(meter, "pairing.verified", "Pairings completed.")
        self.code_guessing_alarms = RelayCounter(
            meter, "pairing.alarm", "Wrong pairing codes above the channel's alarm threshold."
        )
