"""The relay's numbers, by the names the specification gives them, and one alarm."""

from opentelemetry.metrics import Counter, Meter


class Figures:
    """What the relay counts as it happens."""

    def __init__(self, meter: Meter) -> None:
        def counter(name: str, told: str) -> Counter:
            return meter.create_counter(f"relay.{name}", "1", told)

        self.received = counter("webhook.received", "Webhooks that came.")
        self.queued = counter("message.queued", "Messages put into an account's queue.")
        self.delivered = counter("message.delivered", "Messages handed to a client.")
        self.expired = counter("message.expired", "Messages nobody fetched in time.")
        self.sent = counter("callback.sent", "Answers Kakao took.")
        self.failed = counter("callback.failed", "Answers Kakao refused, or of which nothing was heard.")
        self.created = counter("pairing.created", "Pairing codes made.")
        self.verified = counter("pairing.verified", "Pairings that were completed.")
        self.alarm = counter("pairing.alarm", "Wrong codes on a channel that had far too many before.")
