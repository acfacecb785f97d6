"""Handlers: somebody's own functions in a worker, and what their events come to."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pabal import client
from pabal.core.errors import Invalid, NotFound
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from pabal.tokens.services import set_service_active
from support.clusters import Connection
from support.handler_app import at_work, made
from support.subscriptions import TESTER, ends, event, fails, say, subscribe
from support.wait import until

pytestmark = pytest.mark.anyio


class TestWhatAHandlerSees:
    async def test_an_event_of_its_own_service_and_type(self, hub: Hub) -> None:
        program = client.App("minu_build")
        seen: list[tuple[str, client.Event]] = []

        @program.on("order.*", "cart.paid")
        async def orders(event: client.Event) -> None:
            seen.append(("orders", event))

        @program.on("*")
        def rest(event: client.Event) -> None:
            seen.append(("rest", event))

        @program.on("*", service="minu_keep")
        async def keeps(event: client.Event) -> None:
            seen.append(("keeps", event))

        rows = [
            await say(hub, "order.paid", "minu_build", {"n": 1}, correlation_id="c"),
            await say(hub, "cart.paid", "minu_build"),
            await say(hub, "cart.sent", "minu_build"),
            await say(hub, "order.paid", "minu_keep"),
        ]
        async with at_work(hub, program):
            for row in rows:
                await ends(hub, row, "completed")

        found = {event.id: (name, event) for name, event in seen}
        assert len(seen) == 4
        assert [found[row][0] for row in rows] == ["orders", "orders", "rest", "keeps"]
        first = found[rows[0]][1]
        assert (first.payload, first.attempt, first.correlation_id) == ({"n": 1}, 1, "c")
        assert (first.origin_id, first.source_service, first.target_service) == (rows[0], "minu_find", "minu_build")

    async def test_broadcasts_reach_what_is_handled(self, hub: Hub) -> None:
        program, seen = client.App("minu_build"), list[str]()

        @program.on("order.*")
        async def orders(event: client.Event) -> None:
            seen.append(event.event_type)

        async with at_work(hub, program):
            await say(hub, "cart.paid", None)
            await say(hub, "order.paid", None)
            await until(lambda: seen == ["order.paid"])


OUTCOMES: dict[str, Callable[[], Any]] = {
    "retry": lambda: client.Retry("not yet", delay=60),
    "dead": lambda: client.Dead("never"),
    "snooze": lambda: client.Snooze("busy", delay=60),
}


class TestWhatAHandlerSays:
    @pytest.mark.parametrize("how", ["returned", "raised"])
    @pytest.mark.parametrize("awaits", [True, False], ids=["async", "sync"])
    async def test_it_is_done(self, hub: Hub, owner: Connection, how: str, awaits: bool) -> None:
        program = client.App("minu_build")

        def answer(event: client.Event) -> Any:
            said = OUTCOMES[event.event_type]()
            if how == "raised":
                raise said
            return said

        async def later(event: client.Event) -> Any:
            return answer(event)

        program.on("*")(later if awaits else answer)
        rows = {each: await say(hub, each) for each in OUTCOMES}
        async with at_work(hub, program):
            dead = await ends(hub, rows["dead"], "failed")
            retried = await fails(hub, rows["retry"])
            await until(lambda: has_error(hub, rows["snooze"]))
        snoozed = await event(hub, rows["snooze"])

        assert (dead.last_error, retried.last_error, snoozed.last_error) == ("never", "not yet", "busy")
        assert (snoozed.error_history or [], snoozed.retry_count) == ([], 0)
        late = "select next_retry_at - updated_at = interval '60 s' from public.event_queue where id = $1"
        assert await owner.fetchval(late, retried.id)
        assert await owner.fetchval(late, snoozed.id)

    async def test_whatever_else_is_raised_is_a_retry_with_its_trace(self, hub: Hub, owner: Connection) -> None:
        program = client.App("minu_build")

        @program.on("order.sync")
        def one(event: client.Event) -> None:
            raise LookupError("no such order")

        @program.on("order.async")
        async def other(event: client.Event) -> None:
            raise LookupError("no such order")

        rows = [await say(hub, each) for each in ("order.sync", "order.async")]
        async with at_work(hub, program):
            for row in rows:
                failed = await fails(hub, row)
                assert (failed.last_error, failed.error_code) == ("LookupError: no such order", "LookupError")
                stack = await owner.fetchval("select error_stack from public.event_queue where id = $1", row)
                assert 'raise LookupError("no such order")' in stack

    async def test_a_plain_function_that_gives_something_to_await_is_awaited(self, hub: Hub) -> None:
        """A decorator that knows nothing of async, or an object with an async call, must not make it done unseen."""
        program, seen = client.App("minu_build"), list[str]()

        async def really(event: client.Event) -> None:
            await asyncio.sleep(0)
            seen.append(event.event_type)

        def wrapped(event: client.Event) -> Any:
            return really(event)

        class Called:
            async def __call__(self, event: client.Event) -> None:
                await really(event)

        program.on("order.wrapped")(wrapped)
        program.on("order.object")(Called())
        rows = [await say(hub, each) for each in ("order.wrapped", "order.object")]
        async with at_work(hub, program):
            for row in rows:
                await ends(hub, row, "completed")

        assert sorted(seen) == ["order.object", "order.wrapped"]


async def has_error(hub: Hub, row: UUID) -> bool:
    return (await event(hub, row)).last_error is not None


class TestHowManyAtOnce:
    @pytest.mark.parametrize("awaits", [True, False], ids=["async", "sync"])
    async def test_as_many_as_it_allows_and_not_one_more(self, hub: Hub, awaits: bool) -> None:
        program = client.App("minu_build")
        now = most = others = 0
        gate, lock = threading.Event(), threading.Lock()
        opened = asyncio.Event()

        def begin() -> None:
            nonlocal now, most
            with lock:
                now += 1
                most = max(most, now)

        def end() -> None:
            nonlocal now
            with lock:
                now -= 1

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
            nonlocal others
            others += 1

        rows = [await say(hub, "order.paid") for _ in range(30)]
        async with at_work(hub, program):
            try:
                await until(lambda: now == 12)
                for _ in range(5):  # the others are not held up, and none of the first kind slips in with them
                    await ends(hub, await say(hub, "cart.paid"), "completed")
            finally:
                gate.set()
                opened.set()
            for row in rows:
                await ends(hub, row, "completed")

        assert (most, others) == (12, 5)


class TestTimeout:
    async def test_a_handler_that_takes_too_long_is_a_retry(self, hub: Hub) -> None:
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

        rows = [await say(hub, each, max_retries=3) for each in ("order.async", "order.sync")]
        try:
            async with at_work(hub, program):
                for row in rows:
                    failed = await fails(hub, row)
                    assert (failed.error_code, failed.last_error) == ("timeout", "took longer than 0.05 s")
        finally:
            gate.set()
        assert stopped.is_set()

    async def test_its_own_timeout_is_its_own_failure(self, hub: Hub) -> None:
        program = client.App("minu_build")

        @program.on("*")
        async def calls(event: client.Event) -> None:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

        row = await say(hub, "order.paid")
        async with at_work(hub, program):
            assert (await fails(hub, row)).error_code == "TimeoutError"

    async def test_a_thread_that_never_comes_back_does_not_keep_the_worker(self, hub: Hub) -> None:
        program, gate, began = client.App("minu_build"), threading.Event(), threading.Event()

        @program.on("*")
        def stuck(event: client.Event) -> None:
            began.set()
            gate.wait(30)

        row = await say(hub, "order.paid")
        hasty = hub.settings.model_copy(update={"stop_within": timedelta(milliseconds=50)})
        try:
            async with at_work(replace(hub, settings=hasty), program):
                await until(began.is_set)
            assert [each.daemon for each in threading.enumerate() if each.name == "handler"] == [True]
        finally:
            gate.set()
        given_back = await event(hub, row)
        assert (given_back.status, given_back.retry_count, given_back.processing_started_at) == ("pending", 0, None)


class TestPause:
    async def test_it_outlives_the_worker_and_the_program(
        self, hub: Hub, database_urls: DatabaseUrls, settings: Settings, owner: Connection
    ) -> None:
        program, seen = client.App("minu_build"), list[str]()

        @program.on("order.*")
        async def orders(event: client.Event) -> None:
            seen.append(event.event_type)

        @program.on("*", service="minu_keep")
        async def awake(event: client.Event) -> None:
            seen.append(event.target_service)

        async with at_work(hub, program):
            await until(lambda: subscribed(owner, "minu_build"))
        await owner.execute("update pabal.subscriptions set paused_at = now() where service_name = 'minu_build'")
        await say(hub, "order.paid", "minu_build")
        program.on("cart.*")(orders)  # the next version of the program

        async with open_hub(settings, database_urls) as again, at_work(again, program):
            await ends(again, await say(again, "order.paid", "minu_keep"), "completed")
            assert seen == ["minu_keep"]
            await owner.execute("update pabal.subscriptions set paused_at = null where service_name = 'minu_build'")
            await until(lambda: seen == ["minu_keep", "order.paid"])
        [types] = await owner.fetch("select event_types from pabal.subscriptions where service_name = 'minu_build'")
        assert types["event_types"] == ["order.*", "cart.*"]

    async def test_of_a_service_that_is_kept_out_nothing_is_taken(self, hub: Hub) -> None:
        program, seen = client.App("minu_build"), list[str]()

        @program.on("*")
        async def one(event: client.Event) -> None:
            seen.append(event.target_service)

        program.on("*", service="minu_keep")(one)
        async with hub.transaction() as tx:
            await set_service_active(tx, "minu_build", TESTER, active=False)
        row = await say(hub, "order.paid", "minu_build")
        async with at_work(hub, program):
            await ends(hub, await say(hub, "order.paid", "minu_keep"), "completed")
            assert seen == ["minu_keep"]

            async with hub.transaction() as tx:
                await set_service_active(tx, "minu_build", TESTER, active=True)
            await ends(hub, row, "completed")


async def subscribed(owner: Connection, service: str) -> bool:
    return await owner.fetchval("select exists (select from pabal.subscriptions where service_name = $1)", service)


class TestAnnouncing:
    async def test_a_service_nobody_knows_and_types_that_are_none_are_told(self, hub: Hub) -> None:
        for service, event_type, told in (("nobody", "order.*", NotFound), ("minu_build", "Order", Invalid)):
            program = client.App(service)
            program.on(event_type)(print)
            with pytest.raises(told):
                async with hub.transaction() as tx:
                    await made(program).subscribe_services(tx)

    async def test_saying_it_again_changes_nothing(self, hub: Hub, owner: Connection) -> None:
        await subscribe(hub, "minu_build", "order.*")
        program = client.App("minu_build")
        program.on("order.*")(print)
        seen: list[list[tuple[str, int]]] = []
        for _ in range(2):
            async with hub.transaction() as tx:
                await made(program).subscribe_services(tx)
            rows = await owner.fetch("select mode, xmin::text::bigint from pabal.subscriptions order by created_at")
            seen.append([(row["mode"], row["xmin"]) for row in rows])

        assert [mode for mode, _ in seen[0]] == ["pull", "handler"]
        assert seen[0] == seen[1]
