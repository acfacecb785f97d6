"""Wakeups by NATS: a hint beside PostgreSQL, whatever becomes of the server."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import SecretStr
from structlog.testing import capture_logs

from pabal.core.errors import Unavailable
from pabal.core.finding import FindingLevel
from pabal.core.nats_url import parse_nats_urls
from pabal.db.doorbell import nats as nats_transport
from pabal.db.doorbell.channels import NOTIFY_CHANNEL, Channel, Wakeup
from pabal.db.doorbell.doorbell import Doorbell
from pabal.db.doorbell.nats import check_nats, default_nats_tls
from pabal.doctor.doctor import run_checks
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.hub_workers import register_hub_process
from pabal.queue.processes import process_name
from pabal.settings import Settings
from pabal.status import read_status, status_findings
from support.clusters import Connection, open_connection
from support.databases import DatabasePool
from support.nats_server import NatsProcess, run_nats_proxy, run_nats_server
from support.wait import wait_until

pytestmark = pytest.mark.anyio

TIMEOUT = timedelta(seconds=15)
SEND_SQL_EVENT = (
    "insert into public.event_queue (source_service, event_type, payload) values ('minu_find', 'a.b', '{}')"
)
OpenHub = Callable[[str | None], AbstractAsyncContextManager[Hub]]


@pytest.fixture
async def nats() -> AsyncGenerator[NatsProcess]:
    async with run_nats_server() as server:
        yield server


@pytest.fixture
def open_process(database_urls: DatabaseUrls, settings: Settings) -> OpenHub:
    """Opens one more process of the hub, on a NATS server or on NOTIFY alone."""

    @asynccontextmanager
    async def open_one(url: str | None) -> AsyncGenerator[Hub]:
        doorbell = None if url is None else SecretStr(url)
        async with open_hub(settings.model_copy(update={"doorbell": doorbell}), database_urls) as hub:
            yield hub

    return open_one


async def wait_for_roles(forwarding: Hub, *others: Hub) -> None:
    """Wait until the processes are on NATS and only one of them listens for NOTIFY."""
    await wait_until(lambda: forwarding.doorbell.is_forwarding)
    await wait_until(lambda: all(hub.doorbell._older_forwarder_until > 0 and not listens(hub) for hub in others))
    assert all(hub.doorbell.transport == "nats" for hub in others)


def listens(hub: Hub) -> bool:
    return hub.doorbell._notify.is_connected


async def wakes(sender: Doorbell, receiver: Doorbell, topic: str) -> bool:
    """Whether a topic that one process sends arrives in another within the timeout."""
    topics: set[str] = set()
    arrived = asyncio.Event()

    def on_wakeup(received: str) -> bool:
        topics.add(received)
        if topic in topics:
            arrived.set()
        return False

    with receiver.listen(Channel.MESSAGES, on_wakeup=on_wakeup):
        sender.send([Wakeup(Channel.MESSAGES, topic)])
        try:
            async with asyncio.timeout(TIMEOUT.total_seconds()):
                await arrived.wait()
        except TimeoutError:
            return False
    return True


@asynccontextmanager
async def recorded_notifies(url: str) -> AsyncGenerator[list[str]]:
    """The payloads of every NOTIFY, complete when the block ends."""
    payloads: list[str] = []
    async with open_connection(url) as connection:
        await connection.add_listener(NOTIFY_CHANNEL, lambda _c, _p, _n, payload: payloads.append(str(payload)))
        yield payloads
        await connection.execute("select pg_notify($1, 'last')", NOTIFY_CHANNEL)
        await wait_until(lambda: "last" in payloads)


async def test_processes_on_nats_wake_each_other_without_notify(
    nats: NatsProcess, open_process: OpenHub, database_urls: DatabaseUrls
) -> None:
    async with open_process(nats.url) as first, open_process(nats.url) as second:
        await wait_for_roles(first, second)
        first.doorbell._notify_listeners_until = 0.0  # as after some seconds in which it heard none
        async with recorded_notifies(database_urls.main) as payloads:
            assert await wakes(first.doorbell, second.doorbell, "to-second")
            assert await wakes(second.doorbell, first.doorbell, "to-first")

    assert not [payload for payload in payloads if "to-" in payload]


async def test_plain_sql_wakes_processes_that_do_not_listen_for_notify(
    nats: NatsProcess, open_process: OpenHub, owner: Connection
) -> None:
    async with open_process(nats.url) as first, open_process(nats.url) as second:
        await wait_for_roles(first, second)
        with second.doorbell.listen(Channel.EVENTS) as listener:
            await owner.execute(SEND_SQL_EVENT)

            assert await listener.wait(TIMEOUT)


async def test_another_process_forwards_when_the_first_one_ends(
    nats: NatsProcess, open_process: OpenHub, owner: Connection
) -> None:
    async with open_process(nats.url) as second_to_end:
        async with open_process(nats.url) as younger:
            await wait_for_roles(second_to_end, younger)
        async with open_process(nats.url) as last:
            await wait_for_roles(second_to_end, last)
            await second_to_end.doorbell.close()

            await wait_until(lambda: last.doorbell.is_forwarding)
            with last.doorbell.listen(Channel.EVENTS) as listener:
                await owner.execute(SEND_SQL_EVENT)
                assert await listener.wait(TIMEOUT)


async def test_a_killed_server_means_notify_until_it_is_back(nats: NatsProcess, open_process: OpenHub) -> None:
    with capture_logs() as lines:
        async with open_process(nats.url) as first, open_process(nats.url) as second:
            await wait_for_roles(first, second)
            nats.kill()
            await wait_until(lambda: first.doorbell.transport == second.doorbell.transport == "notify")
            assert first.doorbell.lacks_nats
            assert await wakes(first.doorbell, second.doorbell, "while-away")

            await nats.start()
            await wait_for_roles(first, second)
            assert await wakes(second.doorbell, first.doorbell, "after")

    events = [line["event"] for line in lines if "nats" in line["event"]]
    assert events.count("nats disconnected") == events.count("nats connected again") == 2
    assert len(events) == 4


async def test_a_slow_server_delays_wakeups_and_loses_none(nats: NatsProcess, open_process: OpenHub) -> None:
    async with run_nats_proxy(nats) as (proxy, url), open_process(url) as first, open_process(url) as second:
        await wait_for_roles(first, second)
        proxy.delay = 0.3

        assert await wakes(first.doorbell, second.doorbell, "slow")
        assert second.doorbell.transport == "nats"


async def test_a_server_that_accepts_and_stays_silent_delays_nothing(nats: NatsProcess, open_process: OpenHub) -> None:
    async with run_nats_proxy(nats) as (proxy, url):
        proxy.hold_new_connections()
        async with open_process(url) as first, open_process(url) as second:
            await wait_until(lambda: listens(first) and listens(second))
            await wait_until(lambda: proxy.accepted > 1)
            assert await wakes(first.doorbell, second.doorbell, "silent")

            proxy.admit_new_connections()
            await wait_for_roles(first, second)


async def test_a_server_that_falls_silent_is_noticed(nats: NatsProcess, open_process: OpenHub) -> None:
    async with run_nats_proxy(nats) as (proxy, url), open_process(url) as first, open_process(url) as second:
        await wait_for_roles(first, second)
        proxy.drop_bytes()

        await wait_until(lambda: first.doorbell.transport == second.doorbell.transport == "notify")
        assert await wakes(first.doorbell, second.doorbell, "dropped")


async def test_a_process_that_lost_nats_and_those_on_nats_wake_each_other(
    nats: NatsProcess, open_process: OpenHub
) -> None:
    async with (
        open_process(nats.url) as forwarding,
        open_process(nats.url) as other,
        run_nats_proxy(nats) as (proxy, url),
        open_process(url) as cut_off,
    ):
        await wait_for_roles(forwarding, other, cut_off)
        proxy.hold_new_connections()
        proxy.reset()
        await wait_until(lambda: cut_off.doorbell.transport == "notify")
        await wait_until(forwarding.doorbell._forwards_to_notify)

        for process in (forwarding, other):
            assert await wakes(cut_off.doorbell, process.doorbell, "from-cut-off")
            assert await wakes(process.doorbell, cut_off.doorbell, "to-cut-off")


async def test_the_pauses_grow_for_a_server_that_accepts_and_closes(
    nats: NatsProcess, open_process: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def record_pause(delay: float) -> float:
        pauses.append(delay)
        return 0.0

    monkeypatch.setattr(nats_transport, "spread", record_pause)
    monkeypatch.setattr(nats_transport, "NATS_PING_INTERVAL", timedelta(minutes=1))
    async with run_nats_proxy(nats) as (proxy, url), open_process(url) as hub:
        for count in range(1, 5):
            await wait_until(lambda: hub.doorbell.transport == "nats")
            proxy.reset()
            await wait_until(lambda count=count: len(pauses) == count)

    assert pauses == [0.1, 0.2, 0.4, 0.8]


async def test_a_wakeup_that_nats_refuses_reaches_those_on_nats_by_notify(
    nats: NatsProcess, open_process: OpenHub
) -> None:
    async with (
        open_process(nats.url) as forwarding,
        open_process(nats.url) as other,
        open_process(nats.url) as refused,
    ):
        await wait_for_roles(forwarding, other, refused)
        client = refused.doorbell._nats._client
        assert client is not None
        client._max_payload = 0

        assert await wakes(refused.doorbell, other.doorbell, "refused")


async def test_processes_without_nats_and_those_on_nats_wake_each_other(
    nats: NatsProcess, open_process: OpenHub, database_urls: DatabaseUrls
) -> None:
    async with (
        open_process(nats.url) as forwarding,
        open_process(nats.url) as other,
        open_process(None) as plain,
    ):
        await wait_for_roles(forwarding, other)
        await wait_until(forwarding.doorbell._forwards_to_notify)
        async with recorded_notifies(database_urls.main) as payloads:
            for process in (forwarding, other):
                assert await wakes(plain.doorbell, process.doorbell, "from-plain")
                assert await wakes(process.doorbell, plain.doorbell, "to-plain")

    assert len([payload for payload in payloads if "from-plain" in payload]) == 2  # nothing goes round in circles
    assert len([payload for payload in payloads if "to-plain" in payload]) == 2


async def test_a_process_that_begins_to_forward_wakes_listeners_it_has_not_heard_yet(
    nats: NatsProcess, open_process: OpenHub
) -> None:
    async with open_process(None) as plain:
        await wait_until(lambda: listens(plain))
        async with open_process(nats.url) as forwarding:
            await wait_until(lambda: forwarding.doorbell.is_forwarding)

            assert await wakes(forwarding.doorbell, plain.doorbell, "early")


async def test_polling_under_load_is_announced_on_nats(nats: NatsProcess, open_process: OpenHub) -> None:
    async with open_process(nats.url) as first, open_process(nats.url) as second:
        await wait_for_roles(first, second)
        await first.doorbell.load_polling._announce()

        await wait_until(lambda: second.doorbell.load_polling.is_polling)


async def test_hubs_of_two_databases_on_one_server_have_subjects_of_their_own(
    nats: NatsProcess, open_process: OpenHub, database_pool: DatabasePool, settings: Settings
) -> None:
    name = database_pool.acquire()
    try:
        async with open_process(nats.url) as hub, open_hub(settings, database_pool.urls(name)) as stranger:
            await wait_until(lambda: hub.doorbell.transport == "nats")
            subjects = {hub.doorbell._nats._subject, await stranger.doorbell._find_subject()}
    finally:
        database_pool.release(name)

    assert len(subjects) == 2
    assert all(subject.startswith("pabal.") and name not in subject for subject in subjects)


async def test_a_process_behind_a_pooler_is_woken_by_nats(
    nats: NatsProcess, open_process: OpenHub, database_urls: DatabaseUrls, settings: Settings
) -> None:
    pooled = settings.model_copy(update={"doorbell": SecretStr(nats.url), "database_pooler": True})
    async with open_process(nats.url) as first, open_hub(pooled, DatabaseUrls(database_urls.main, None)) as second:
        await wait_until(lambda: first.doorbell.is_forwarding and second.doorbell.transport == "nats")

        assert await wakes(first.doorbell, second.doorbell, "pooled")
        assert not second.doorbell.is_forwarding


async def test_a_wrong_password_is_not_logged_and_delays_nothing(open_process: OpenHub) -> None:
    async with run_nats_server("--user", "hub", "--pass", "right-password") as server:
        url = f"nats://hub:wrong-password@127.0.0.1:{server.port}"
        with capture_logs() as lines:
            async with open_process(url) as hub:
                await wait_until(lambda: hub.doorbell.transport == "notify")
                await wait_until(lambda: any(line["event"] == "nats disconnected" for line in lines))
        [line] = [line for line in lines if line["event"] == "nats disconnected"]

        with pytest.raises(Unavailable, match="Authorization Violation") as refused:
            await check_nats(parse_nats_urls(url))
        await check_nats(parse_nats_urls(url.replace("wrong", "right")))

    assert line["error"] == f"nats://127.0.0.1:{server.port}: 'Authorization Violation'"
    assert "password" not in str(refused.value)


async def test_a_token_and_the_second_of_two_servers_are_used(open_process: OpenHub) -> None:
    async with run_nats_server("--auth", "a token/1") as server:
        away = NatsProcess()
        async with open_process(f"{away.url},nats://a%20token%2F1@127.0.0.1:{server.port}") as hub:
            await wait_until(lambda: hub.doorbell.transport == "nats")


async def test_no_password_is_sent_to_a_server_without_tls() -> None:
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.0.0","max_payload":1048576,"auth_required":true}\r\n')
        received.extend(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"tls://hub:secret-password@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        with pytest.raises(Unavailable, match="does not require TLS"):
            await check_nats(parse_nats_urls(url))
    finally:
        server.close()

    assert b"secret" not in received


async def test_tls_needs_a_certificate_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_process: OpenHub
) -> None:
    certificate, key = create_certificate(tmp_path)
    async with run_nats_server("--tls", "--tlscert", str(certificate), "--tlskey", str(key)) as server:
        url = f"tls://localhost:{server.port}"
        with pytest.raises(Unavailable, match="certificate"):
            await check_nats(parse_nats_urls(url))

        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        default_nats_tls.cache_clear()
        try:
            await check_nats(parse_nats_urls(url))
            async with open_process(url) as hub:
                await wait_until(lambda: hub.doorbell.transport == "nats")
        finally:
            default_nats_tls.cache_clear()


def create_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "nats.crt", folder / "nats.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


async def test_doctor_and_status_name_processes_without_nats(
    nats: NatsProcess, open_process: OpenHub, database_urls: DatabaseUrls, settings: Settings
) -> None:
    async def read_finding(hub: Hub) -> tuple[FindingLevel, str]:
        async with hub.autocommit() as tx:
            findings = status_findings(await read_status(tx))
        return next((finding.level, finding.seen) for finding in findings if finding.what == "wake-ups")

    with_nats = settings.model_copy(update={"doorbell": SecretStr(f"nats://hub:hunter2@127.0.0.1:{nats.port}")})
    async with open_process(nats.url) as hub:
        await wait_until(lambda: hub.doorbell.transport == "nats")
        async with reported_process(hub):
            assert await read_finding(hub) == (FindingLevel.GOOD, "all processes are on NATS: 1")
        responding = await run_checks(with_nats, database_urls)
        nats.kill()
        await wait_until(lambda: hub.doorbell.transport == "notify")
        async with reported_process(hub):
            level, seen = await read_finding(hub)
        silent = await run_checks(with_nats, database_urls)

    assert (level, seen) == (FindingLevel.WARNING, f"without NATS, so wake-ups use NOTIFY: {process_name()}")
    [good], [bad] = ([item for item in findings if item.what == "nats"] for findings in (responding, silent))
    assert (good.level, good.seen) == (FindingLevel.GOOD, f"nats://127.0.0.1:{nats.port} responds")
    assert bad.level is FindingLevel.WARNING
    assert bad.seen.startswith(
        f"no server of PABAL_DOORBELL responds, so hubs use NOTIFY: nats://127.0.0.1:{nats.port}"
    )
    assert "hunter2" not in f"{good}{bad}"


@asynccontextmanager
async def reported_process(hub: Hub) -> AsyncGenerator[None]:
    """Register the process for the duration of the block, after its first heartbeat."""

    async def is_reported() -> bool:
        async with hub.autocommit() as tx:
            return bool((await read_status(tx)).processes)

    async with register_hub_process(hub, []):
        await wait_until(is_reported)
        yield
