"""The log of an outage: one line at its begin, one a minute, one at its end."""

from structlog.testing import capture_logs

from pabal.core.errors import DATABASE_UNAVAILABLE
from pabal.core.outage import OutageLog


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_outage_is_logged_at_its_begin_once_a_minute_and_at_its_end() -> None:
    clock = Clock()
    outage = OutageLog("it broke", "it works", clock)
    with capture_logs() as lines:
        for _ in range(1, 150):
            outage.record_failure(f"{DATABASE_UNAVAILABLE}refused")
            clock.now += 1
        outage.record_success()
        outage.record_success()

    assert [(line["event"], line.get("failures")) for line in lines] == [
        ("it broke", None),
        ("it broke", 61),
        ("it broke", 121),
        ("it works", 149),
    ]
    assert lines[0]["error"] == "refused"
    assert lines[-1]["seconds"] == 149


def test_a_success_among_failures_does_not_end_the_outage() -> None:
    clock = Clock()
    outage = OutageLog("it broke", "it works", clock)
    with capture_logs() as lines:
        for _ in range(20):
            outage.record_failure("refused")
            clock.now += 0.4
            outage.record_success()

    assert [line["event"] for line in lines] == ["it broke"]
    assert outage.is_open
