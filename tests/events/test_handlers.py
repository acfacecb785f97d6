"""Handlers in a worker: which events they get, and how their outcomes settle events."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

import pabal_client as client
from pabal.core.errors import Invalid, NotFound
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from pabal.tokens.services import set_service_active
from support.clusters import Connection
from support.handler_app import build_handlers, run_program
from support.subscriptions import TESTER, load_event, publish_test_event, subscribe, wait_for_failures, wait_for_status
from support.wait import wait_until

pytestmark = pytest.mark.anyio


class TestMatching:
    async def test_a_handler_gets_events_of_its_service_and_types(self, hub: Hub) -> None:
        program = client.App("minu_build")
        calls: list[tuple[str, client.Event]] = []

        @program.on("order.*", "cart.paid")
        async def orders(event: client.Event) -> None:
            calls.append(("orders", event))

        @program.on("*")
        def rest(event: client.Event) -> None:
            calls.append(("rest", event))

        @program.on("*", service="minu_keep")
        async def keeps(event: client.Event) -> None:
            calls.append(("keeps", event))

        rows = [
            await publish_test_event(hub, "order.paid", "minu_build", {"n": 1}, correlation_id="c"),
            await publish_test_event(hub, "cart.paid", "minu_build"),
            await publish_test_event(hub, "cart.sent", "minu_build"),
            await publish_test_event(hub, "order.paid", "minu_keep"),
        ]
        async with run_program(hub, program):
            for row in rows:
                await wait_for_status(hub, row, "completed")

        handled = {event.id: (name, event) for name, event in calls}
        assert len(calls) == 4
        assert [handled[row][0] for row in rows] == ["orders", "orders", "rest", "keeps"]
        first = handled[rows[0]][1]
        assert (first.payload, first.attempt, first.correlation_id) == ({"n": 1}, 1, "c")
        assert (first.origin_id, first.source_service, first.target_service) == (rows[0], "minu_find", "minu_build")

    async def test_a_handler_gets_broadcasts_of_its_types(self, hub: Hub) -> None:
        program, handled = client.App("minu_build"), list[str]()

        @program.on("order.*")
        async def orders(event: client.Event) -> None:
            handled.append(event.event_type)

        async with run_program(hub, program):
            await publish_test_event(hub, "cart.paid", None)
            await publish_test_event(hub, "order.paid", None)
            await wait_until(lambda: handled == ["order.paid"])


OUTCOMES: dict[str, Callable[[], Any]] = {
    "retry": lambda: client.Retry("not yet", delay=60),
    "dead": lambda: client.Dead("never"),
    "snooze": lambda: client.Snooze("busy", delay=60),
}


class TestOutcomes:
    @pytest.mark.parametrize("delivery", ["returned", "raised"])
    @pytest.mark.parametrize("awaits", [True, False], ids=["async", "sync"])
    async def test_a_returned_or_raised_outcome_settles_the_event(
        self, hub: Hub, owner: Connection, delivery: str, awaits: bool
    ) -> None:
        program = client.App("minu_build")

        def answer(event: client.Event) -> Any:
            outcome = OUTCOMES[event.event_type]()
            if delivery == "raised":
                raise outcome
            return outcome

        async def later(event: client.Event) -> Any:
            return answer(event)

        program.on("*")(later if awaits else answer)
        rows = {event_type: await publish_test_event(hub, event_type) for event_type in OUTCOMES}
        async with run_program(hub, program):
            dead = await wait_for_status(hub, rows["dead"], "failed")
            retried = await wait_for_failures(hub, rows["retry"])
            await wait_until(lambda: has_error(hub, rows["snooze"]))
        snoozed = await load_event(hub, rows["snooze"])

        assert (dead.last_error, retried.last_error, snoozed.last_error) == ("never", "not yet", "busy")
        assert (snoozed.error_history or [], snoozed.retry_count) == ([], 0)
        late = "select next_retry_at - updated_at = interval '60 s' from public.event_queue where id = $1"
        assert await owner.fetchval(late, retried.id)
        assert await owner.fetchval(late, snoozed.id)

    async def test_any_other_exception_is_a_retry_with_its_stack(self, hub: Hub, owner: Connection) -> None:
        program = client.App("minu_build")

        @program.on("order.sync")
        def sync_handler(event: client.Event) -> None:
            raise LookupError("no such order")

        @program.on("order.async")
        async def async_handler(event: client.Event) -> None:
            raise LookupError("no such order")

        rows = [await publish_test_event(hub, event_type) for event_type in ("order.sync", "order.async")]
        async with run_program(hub, program):
            for row in rows:
                failed = await wait_for_failures(hub, row)
                assert (failed.last_error, failed.error_code) == ("LookupError: no such order", "LookupError")
                stack = await owner.fetchval("select error_stack from public.event_queue where id = $1", row)
                assert 'raise LookupError("no such order")' in stack

    async def test_an_awaitable_from_a_sync_handler_is_awaited(self, hub: Hub) -> None:
        """Cases: a sync wrapper of a coroutine function, and an object with an async `__call__`."""
        program, handled = client.App("minu_build"), list[str]()

        async def handle_async(event: client.Event) -> None:
            await asyncio.sleep(0)
            handled.append(event.event_type)

        def sync_wrapper(event: client.Event) -> Any:
            return handle_async(event)

        class Called:
            async def __call__(self, event: client.Event) -> None:
                await handle_async(event)

        program.on("order.wrapped")(sync_wrapper)
        program.on("order.object")(Called())
        rows = [await publish_test_event(hub, event_type) for event_type in ("order.wrapped", "order.object")]
        async with run_program(hub, program):
            for row in rows:
                await wait_for_status(hub, row, "completed")

        assert sorted(handled) == ["order.object", "order.wrapped"]


async def has_error(hub: Hub, row: UUID) -> bool:
    return (await load_event(hub, row)).last_error is not None


class TestConcurrency:
    def test_the_default_depends_on_whether_the_handler_is_async(self) -> None:
        program = client.App("minu_build")

        @program.on("order.*")
        async def waits(event: client.Event) -> None: ...

        @program.on("cart.*")
        def blocks(event: client.Event) -> None: ...

        assert [handler.concurrency for handler in program.handlers] == [100, 10]

    async def test_rounds_that_follow_at_once_count_the_events_claimed_before(self, hub: Hub) -> None:
        """With two handlers, the first round gives each half of the slots, and the next one the rest."""
        program = client.App("minu_build")
        running, opened, other = 0, asyncio.Event(), asyncio.Event()

        @program.on("*", concurrency=40)
        async def wait(event: client.Event) -> None:
            nonlocal running
            running += 1
            await opened.wait()

        @program.on("*", service="minu_keep", concurrency=20)
        async def finish(event: client.Event) -> None:
            other.set()

        for _ in range(80):
            await publish_test_event(hub, "order.paid")
        async with run_program(hub, program):
            await wait_until(lambda: running >= 40)
            await publish_test_event(hub, "order.paid", "minu_keep")
            await other.wait()
            assert running == 40
            opened.set()

    @pytest.mark.parametrize("awaits", [True, False], ids=["async", "sync"])
    async def test_a_handler_runs_at_its_concurrency_and_not_above(self, hub: Hub, awaits: bool) -> None:
        program = client.App("minu_build")
        running = peak = other_calls = 0
        gate, lock = threading.Event(), threading.Lock()
        opened = asyncio.Event()

        def begin() -> None:
            nonlocal running, peak
            with lock:
                running += 1
                peak = max(peak, running)

        def end() -> None:
            nonlocal running
            with lock:
                running -= 1

        async def waits(event: client.Event) -> None:
            begin()
            await opened.wait()
            end()

        def blocks(event: client.Event) -> None:
            begin()
            gate.wait(30)
            end()

        program.on("order.*", concurrency=12)(waits if awaits else blocks)

        @program.on("cart.*", concurrency=30)
        async def quick(event: client.Event) -> None:
            nonlocal other_calls
            other_calls += 1

        rows = [await publish_test_event(hub, "order.paid") for _ in range(30)]
        async with run_program(hub, program):
            try:
                await wait_until(lambda: running == 12)
                for _ in range(5):  # other handlers go on, and no further order starts
                    await wait_for_status(hub, await publish_test_event(hub, "cart.paid"), "completed")
            finally:
                gate.set()
                opened.set()
            for row in rows:
                await wait_for_status(hub, row, "completed")

        assert (peak, other_calls) == (12, 5)


class TestTimeout:
    async def test_a_handler_timeout_is_a_retry(self, hub: Hub) -> None:
        program, stopped = client.App("minu_build"), asyncio.Event()
        gate = threading.Event()

        @program.on("order.async", timeout=0.05)
        async def slow(event: client.Event) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        @program.on("order.sync", timeout=0.05)
        def blocked(event: client.Event) -> None:
            gate.wait(30)

        rows = [
            await publish_test_event(hub, event_type, max_retries=3) for event_type in ("order.async", "order.sync")
        ]
        try:
            async with run_program(hub, program):
                for row in rows:
                    failed = await wait_for_failures(hub, row)
                    assert (failed.error_code, failed.last_error) == ("timeout", "took longer than 0.05 s")
        finally:
            gate.set()
        assert stopped.is_set()

    async def test_a_timeout_inside_a_handler_is_an_exception_of_the_handler(self, hub: Hub) -> None:
        program = client.App("minu_build")

        @program.on("*")
        async def calls(event: client.Event) -> None:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

        row = await publish_test_event(hub, "order.paid")
        async with run_program(hub, program):
            assert (await wait_for_failures(hub, row)).error_code == "TimeoutError"

    async def test_a_blocked_thread_does_not_keep_the_worker_alive(self, hub: Hub) -> None:
        program, gate, started = client.App("minu_build"), threading.Event(), threading.Event()

        @program.on("*")
        def stuck(event: client.Event) -> None:
            started.set()
            gate.wait(30)

        row = await publish_test_event(hub, "order.paid")
        short_stop = hub.settings.model_copy(update={"stop_within": timedelta(milliseconds=50)})
        try:
            async with run_program(replace(hub, settings=short_stop), program):
                await wait_until(started.is_set)
            assert [thread.daemon for thread in threading.enumerate() if thread.name == "handler"] == [True]
        finally:
            gate.set()
        released = await load_event(hub, row)
        assert (released.status, released.retry_count, released.processing_started_at) == ("pending", 0, None)


class TestPause:
    async def test_a_pause_survives_a_restart_and_a_new_version(
        self, hub: Hub, database_urls: DatabaseUrls, settings: Settings, owner: Connection
    ) -> None:
        program, handled = client.App("minu_build"), list[str]()

        @program.on("order.*")
        async def orders(event: client.Event) -> None:
            handled.append(event.event_type)

        @program.on("*", service="minu_keep")
        async def awake(event: client.Event) -> None:
            handled.append(event.target_service)

        async with run_program(hub, program):
            await wait_until(lambda: subscribed(owner, "minu_build"))
        await owner.execute("update pabal.subscriptions set paused_at = now() where service_name = 'minu_build'")
        await publish_test_event(hub, "order.paid", "minu_build")
        program.on("cart.*")(orders)  # a new version of the program

        async with open_hub(settings, database_urls) as again, run_program(again, program):
            await wait_for_status(again, await publish_test_event(again, "order.paid", "minu_keep"), "completed")
            assert handled == ["minu_keep"]
            await owner.execute("update pabal.subscriptions set paused_at = null where service_name = 'minu_build'")
            await wait_until(lambda: handled == ["minu_keep", "order.paid"])
        [types] = await owner.fetch("select event_types from pabal.subscriptions where service_name = 'minu_build'")
        assert types["event_types"] == ["order.*", "cart.*"]

    async def test_events_of_a_disabled_service_are_not_claimed(self, hub: Hub) -> None:
        program, handled = client.App("minu_build"), list[str]()

        @program.on("*")
        async def handle(event: client.Event) -> None:
            handled.append(event.target_service)

        program.on("*", service="minu_keep")(handle)
        async with hub.transaction() as tx:
            await set_service_active(tx, "minu_build", TESTER, active=False)
        row = await publish_test_event(hub, "order.paid", "minu_build")
        async with run_program(hub, program):
            await wait_for_status(hub, await publish_test_event(hub, "order.paid", "minu_keep"), "completed")
            assert handled == ["minu_keep"]

            async with hub.transaction() as tx:
                await set_service_active(tx, "minu_build", TESTER, active=True)
            await wait_for_status(hub, row, "completed")


async def subscribed(owner: Connection, service: str) -> bool:
    return await owner.fetchval("select exists (select from pabal.subscriptions where service_name = $1)", service)


class TestSubscribing:
    async def test_unknown_services_and_invalid_types_are_refused(self, hub: Hub) -> None:
        for service, event_type, error in (("nobody", "order.*", NotFound), ("minu_build", "Order", Invalid)):
            program = client.App(service)
            program.on(event_type)(print)
            with pytest.raises(error):
                async with hub.transaction() as tx:
                    await build_handlers(program).subscribe_services(tx)

    async def test_subscribing_again_changes_nothing(self, hub: Hub, owner: Connection) -> None:
        await subscribe(hub, "minu_build", "order.*")
        program = client.App("minu_build")
        program.on("order.*")(print)
        versions: list[list[tuple[str, int]]] = []
        for _ in range(2):
            async with hub.transaction() as tx:
                await build_handlers(program).subscribe_services(tx)
            rows = await owner.fetch("select mode, xmin::text::bigint from pabal.subscriptions order by created_at")
            versions.append([(row["mode"], row["xmin"]) for row in rows])

        assert [mode for mode, _ in versions[0]] == ["pull", "handler"]
        assert versions[0] == versions[1]
