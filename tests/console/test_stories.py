"""Stories on Korean pages: every sentence is Korean, whatever happened."""

import html
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from pabal.console.i18n import Translator
from pabal.console.trace.timeline import link_ids
from pabal.core.errors import CallbackExpired, CallbackFailed, CallbackUnconfirmed
from pabal.core.ids import new_id
from pabal.core.messages import Message
from pabal.events.consume.lane import LANE
from pabal.events.dead_letters.dead_letters import resolve_dead_letter
from pabal.events.dead_letters.replay import replay_dead_letter
from pabal.events.events import EventAccess, cancel_event, find_event
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications.decision.decide import DecisionStep, NotificationChannel
from pabal.notifications.dispatch.dispatch_lane import NotificationDispatchLane
from pabal.notifications.lane import LANE as NOTICES
from pabal.notifications.notifications import NotificationAccess
from pabal.notifications.people.preferences import PreferencesUpdate, update_preferences
from pabal.notifications.requests import cancel_notification as call_off
from pabal.notifications.toasts.inbox import ToastAction, mark_toast
from pabal.queue.lane import Settlement
from pabal.queue.outcome import Dead, Retry, Snooze
from pabal.relay.conversations import cancel_messages as give_up
from pabal.relay.delivery.lane import LANE as MESSAGES
from pabal.relay.delivery.poll import ack_messages
from pabal.relay.reply.stall import build_stall_body, claim_expiring_callbacks
from pabal.relay.webhook.skill_response import chat_texts
from pabal.settings import Settings
from support.clusters import open_connection
from support.failed_events import MINA, MINUTE, EventQueue, replay_as_operator
from support.fake_kakao import FakeKakao, kakao_response, run_fake_kakao
from support.notifications import PAID, draft_notification, register_builtin_templates, request_drafts
from support.operator import SignedInOperator
from support.receiver import close_connection
from support.relay_rows import Bot, Chat

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
SECOND = timedelta(seconds=1)
ENGLISH = re.compile(r"[A-Za-z']+(?:[ ,;:]+[A-Za-z']+){2,}")
RAW = re.compile(r"\b(?:QUEUED|DELIVERED|ACKED|EXPIRED|CANCELLED|[a-z]+(?:_[a-z]+)+)\b")
SERVICES = {"minu_find", "minu_build", "minu_keep"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def there() -> AsyncGenerator[FakeKakao]:
    async with run_fake_kakao() as opened:
        yield opened


@pytest.fixture
async def bot(hub: Hub, database_urls: DatabaseUrls, there: FakeKakao) -> AsyncGenerator[Bot]:
    async with open_connection(database_urls.direct or database_urls.main) as db:
        yield await Bot.of(hub, Chat(db), there)


async def shown(by: SignedInOperator, path: str) -> str:
    """What a Korean page says, but for payloads, ids, commands and what is marked as somebody's own words."""
    page = await by.get(path, "ko")
    assert page.status_code == 200, page.text
    main = page.text.partition("<main")[2].partition("</main>")[0]
    for others in (
        r"<pre.*?</pre>",
        r"<code.*?</code>",
        r'<(\w+)[^>]* lang="en">.*?</\1>',
        r"pabal (?:notification|person|address|template) [^<]*",
    ):
        main = re.sub(others, "", main, flags=re.DOTALL)
    within = re.sub(r"</?(?:a|span|time|strong)\b[^>]*>", "", main)
    return html.unescape(re.sub(r"\s*<[^>]*>\s*", "\n", f"<{within}"))


async def timeline(by: SignedInOperator, room: str, row: object) -> str:
    """The texts of a trace, on the trace page and on the row's own page: in Korean, without raw column values."""
    says = "\n".join([await shown(by, f"/console/trace?id={row}"), await shown(by, f"/console/{room}/{row}")])
    assert ENGLISH.findall(says) == []
    assert {*RAW.findall(says)} <= SERVICES
    return says


async def test_an_event_that_failed_died_was_replayed_and_came_through(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue, travel: Travel
) -> None:
    event = await event_queue.publish(max_retries=1)
    for outcome in (Retry("boom", SECOND), Dead("bang")):
        [held] = await event_queue.claim()
        await travel(90 * SECOND)
        await event_queue.settle(held, outcome)
        await travel(2 * SECOND)
    letter = await event_queue.find_dead_letter(event)
    await replay_as_operator(hub, letter)
    again = await event_queue.fail(event, Dead("crash"))
    await replay_as_operator(hub, again)
    [held] = await event_queue.claim()
    running = await timeline(admin, "events", event)
    await event_queue.settle(held)

    says = await timeline(admin, "events", event)

    for sentence in (
        "minu_find 서비스가 order.paid 이벤트를 발행했습니다. 수신: minu_build",
        "w1의 1번째 시도가 실패했습니다: boom",
        f"데드 레터로 옮겼습니다: bang · 데드 레터 {letter}",
        "데드 레터로 옮겼습니다(2번째): crash",
        "재처리했습니다 (operator:mina)",
        "w1의 1번째 시도가 성공했습니다",
        "재처리됨 (operator:mina)",
    ):
        assert sentence in says
    assert re.search(r"\(1분 \d+초 소요\)", says)
    assert re.search(r"\+2\.\d초", says)
    assert "w1에서 1번째 시도를 시작했습니다" in running
    assert re.search(r"처리 중, w1의 리스가 (?:1분 0초|\d+초) 남았습니다", running)
    assert "재처리됨" in await timeline(admin, "dead", again)


async def test_a_broadcast_and_those_it_is_for(admin: SignedInOperator, hub: Hub, event_queue: EventQueue) -> None:
    nobody = await event_queue.publish(target=None)
    await event_queue.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types)"
        " values ('minu_build', 'pull', '{*}'), ('minu_keep', 'pull', '{*}')"
    )
    event, off = await event_queue.publish(target=None), await event_queue.publish(target=None)
    async with hub.transaction() as tx:
        await cancel_event(tx, await find_event(tx, off, EventAccess("hub", all_services=True)), MINA)
    [held] = await event_queue.claim(service="minu_keep")
    await event_queue.settle(held, Dead("boom"))

    whole = await timeline(admin, "events", event)

    assert "전달 2건 중 0건 완료, 데드 레터 1건" in whole
    assert "수신: 전체 구독자" in whole
    assert "minu_keep 서비스의 대기열에 추가했습니다" in whole
    assert "이벤트 → 전체 구독자" in whole
    assert f"수신: minu_keep. 원본 이벤트: {event}" in await timeline(admin, "events", held.id)
    assert "구독한 서비스가 없었습니다" in await timeline(admin, "events", nobody)
    assert "취소했습니다 (operator:mina). 전달 2건" in await shown(admin, f"/console/trace?id={off}")


async def test_events_that_wait_or_were_given_up(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue, travel: Travel
) -> None:
    later = await event_queue.publish(deliver_at=datetime.now(UTC) + timedelta(hours=30))
    late = await event_queue.publish(expires_at=datetime.now(UTC) + MINUTE, target="minu_keep")
    put_off, off, by_hand = await event_queue.publish(), await event_queue.publish(), await event_queue.publish()
    [held] = [each for each in await event_queue.claim() if each.id == put_off]
    await event_queue.settle(held, Snooze("lunch", 30 * MINUTE))
    async with hub.transaction() as tx:
        await cancel_event(tx, await find_event(tx, off, EventAccess("hub", all_services=True)), MINA)
    await event_queue.owner.execute("update public.event_queue set status = 'pending' where id = $1", by_hand)
    await event_queue.owner.execute("update public.event_queue set status = 'completed' where id = $1", by_hand)
    first, in_line = [await event_queue.publish(ordering_key="o1") for _ in range(2)]
    await travel(2 * MINUTE)
    async with hub.autocommit() as tx:
        await LANE.expire(tx, 10)

    assert re.search(r"대기 중, 1일 \d시간 뒤에 전달합니다", says := await timeline(admin, "events", later))
    assert "수신: minu_build. 예약된 시각에 전달합니다" in says
    assert "제때 가져간 컨슈머가 없어 만료되었습니다" in await timeline(admin, "events", late)
    assert "연기했습니다. 시도 횟수에 포함되지 않습니다: lunch" in await timeline(admin, "events", put_off)
    assert "취소했습니다 (operator:mina)" in await timeline(admin, "events", off)
    await timeline(admin, "events", by_hand)
    assert f"대기 중, 순서 키 o1에서 앞선 이벤트를 기다립니다: {first}" in await timeline(admin, "events", in_line)


async def test_what_is_left_of_an_event(admin: SignedInOperator, hub: Hub, event_queue: EventQueue) -> None:
    event, letter = await event_queue.publish_failed()
    await event_queue.owner.execute("delete from public.event_queue")
    async with hub.transaction() as tx:
        anew = await replay_dead_letter(tx, letter, MINA)
    again = await event_queue.fail(anew)
    async with hub.transaction() as tx:
        await resolve_dead_letter(tx, again, MINA, "known")

    says = await timeline(admin, "events", anew)

    assert "이벤트는 삭제되었으며, 데드 레터와 감사 로그에 남은 내용입니다" in says
    assert f"재처리했습니다 (operator:mina). 새 이벤트: {anew}" in says
    assert "데드 레터를 해결로 표시했습니다 (operator:mina): known" in says
    assert f'title="{event}"' in (await admin.get(f"/console/trace?id={anew}", "ko")).text


async def fetch(bot: Bot, holder: str) -> None:
    async with bot.hub.autocommit() as tx:
        assert await MESSAGES.claim(tx, 10, MINUTE, holder, bot.owner.id)


async def test_messages_and_their_answers(admin: SignedInOperator, bot: Bot, travel: Travel) -> None:
    first = await bot.insert_message("first")
    waiting = await timeline(admin, "relay/messages", first)
    await fetch(bot, f"stream:{bot.owner.id}:s1")
    held = await timeline(admin, "relay/messages", first)
    await travel(51 * SECOND)
    async with bot.hub.autocommit() as tx:
        [dying] = await claim_expiring_callbacks(tx, 50 * SECOND)
    bot.kakao.responder = kakao_response("SUCCESS", "됨")
    await bot.hub.relay.callbacks.send(dying.callback, build_stall_body(dying, chat_texts("ko")))
    await travel(20 * SECOND)
    left = await timeline(admin, "relay/messages", first)
    with pytest.raises(CallbackExpired):
        await bot.send_reply(first, "늦음")
    second = await bot.insert_message("second")
    await bot.send_reply(second, "지금")

    of_first, of_second = (
        await timeline(admin, "relay/messages", first),
        await timeline(admin, "relay/messages", second),
    )

    assert re.search(r"대기, 만료까지 1\d분 \d+초 남았습니다", waiting)
    assert "channel:user 대화에서 콜백과 함께 받았습니다" in waiting
    assert re.search(rf"봇에 전달됨, {bot.owner.id}의 스트림 s1의 리스가 [\d분초 ]+ 남았습니다", held)
    assert re.search(r"의 스트림 s1의 리스가 만료되었고 만료까지 1\d분 \d+초 남았습니다", left)
    assert "아직 답변이 없어 허브가 콜백으로 짧은 안내를 보냅니다" in of_first
    assert "카카오가 허브의 안내 메시지를 받았습니다: 200 SUCCESS, 됨" in of_first
    assert "콜백이 만료된 뒤에 답변했습니다. 보관한 답변: " in of_first
    assert f"다음 메시지의 답변 앞에 표시했습니다: {second}" in of_first
    assert "처리됨, 답변: 다음 답변과 함께 표시됨" in of_first
    assert f"이전 메시지의 늦은 답변을 앞에 붙였습니다: {first}" in of_second
    assert "봇이 답변했고 콜백을 사용합니다" in of_second


async def test_messages_that_nobody_answered(admin: SignedInOperator, bot: Bot, travel: Travel) -> None:
    fetched = await bot.insert_message("fetched")
    for holder in ("poll:t1", "poll:t2"):
        await fetch(bot, holder)
        await travel(MINUTE)
    slept, acked = await bot.insert_message("slept"), await bot.insert_message("acked")
    async with bot.hub.transaction() as tx:
        await ack_messages(tx, bot.owner.id, [acked])
    failing: list[UUID] = []
    for responder, error in ((kakao_response("FAIL", "used"), CallbackFailed), (close_connection, CallbackUnconfirmed)):
        failing.append(await bot.insert_message("failing"))
        bot.kakao.responder = responder
        with pytest.raises(error):
            await bot.send_reply(failing[-1], "지금")
    late = await bot.send_late_reply("늦음")
    await travel(31 * MINUTE)
    async with bot.hub.transaction() as tx:
        await MESSAGES.expire(tx, 10)
    off = await bot.chat.message(bot.owner, bot.key, None)
    async with bot.hub.transaction() as tx:
        await give_up(tx, bot.owner.id, "blocked", conversation=bot.key)

    says = {each: await timeline(admin, "relay/messages", each) for each in (fetched, slept, acked, late, off)}

    assert "2번 전달했고, 마지막으로 t2의 폴링에 전달했습니다" in says[fetched]
    assert "전달했지만 답변이 없어 만료되었습니다" in says[fetched]
    assert "제때 가져간 봇이 없어 만료되었습니다" in says[slept]
    assert "다음 답변 앞에서 사용자에게 알립니다" in says[slept]
    assert "만료, 대기 시간 초과" in says[slept]
    assert "처리됨, 답변 없음" in says[acked]
    assert "사용자가 제때 다시 메시지를 보내지 않아 더는 보관하지 않습니다" in says[late]
    assert "취소되었습니다: 대화가 차단되었습니다" in says[off]
    assert "취소, 차단됨" in says[off]
    refused, unknown = [await shown(admin, f"/console/trace?id={each}") for each in failing]
    assert "카카오가 답변을 거부했습니다: " in refused
    assert "카카오가 답변을 받았는지 알 수 없습니다: " in unknown
    assert "대기" in await shown(admin, f"/console/trace?id={bot.key}")


@pytest.fixture
async def office(hub: Hub) -> Hub:
    return await register_builtin_templates(hub)


async def ask(hub: Hub, **how: Any) -> UUID:
    [made] = await request_drafts(hub, draft_notification(hub, **how))
    return made.id


async def dispatch(hub: Hub) -> None:
    """Send what is due: into a dashboard, or onto paper, as there is no Discord here."""
    async with hub.autocommit() as tx:
        held = await NOTICES.claim(tx, 10, MINUTE, "w1")
    for each in held:
        outcome = await hub.dispatcher.handle(each)
        async with hub.transaction() as tx:
            await NotificationDispatchLane().settle(tx, [Settlement(each, outcome)])


async def test_notifications_that_were_sent(admin: SignedInOperator, office: Hub, event_queue: EventQueue) -> None:
    event = await event_queue.publish(payload=msgspec.json.encode({"user": "100", **PAID}))
    toast = await ask(office, channel=NotificationChannel.DASHBOARD_TOAST, event=event)
    dm = await ask(office, event=event)
    async with office.transaction() as tx:
        await update_preferences(tx, "102", PreferencesUpdate(dm_enabled=False), MINA)
    urgent = await ask(office, key="antinuke.triggered", recipient="102")
    await dispatch(office)
    for mark in (ToastAction.SEEN, ToastAction.READ, ToastAction.ARCHIVE):
        async with office.transaction() as tx:
            await mark_toast(tx, "100", toast, mark)

    of_event, of_toast = await timeline(admin, "events", event), await timeline(admin, "notifications", toast)

    assert "알림 → Discord DM" in of_event
    assert "payment.succeeded 알림을 요청했습니다 (tester). 받는 사람: 대시보드 100" in of_toast
    assert "발송하기로 했습니다: 이 분류의 수신 켜짐, 주소 정상" in of_toast
    for sentence in ("대시보드에 도착했습니다", "화면에 표시되었습니다", "읽었습니다", "보관했습니다"):
        assert sentence in of_toast
    assert "발송 제외, Discord 토큰 없음" in await timeline(admin, "notifications", dm)
    assert "수신 설정과 관계없이 발송함: DM 수신 꺼짐 (hub)" in await timeline(admin, "notifications", urgent)


async def test_notifications_that_were_not(
    admin: SignedInOperator, office: Hub, event_queue: EventQueue, travel: Travel
) -> None:
    changed = await ask(office, recipient="101")
    async with office.transaction() as tx:
        await update_preferences(tx, "101", PreferencesUpdate(dm_enabled=False), MINA)
    at_once = await ask(office, recipient="101")
    await dispatch(office)
    off, later = (
        await ask(office, recipient="102"),
        await ask(office, recipient="104", scheduled_at=datetime.now(UTC) + timedelta(hours=9)),
    )
    async with office.transaction() as tx:
        await call_off(tx, off, NotificationAccess("hub", all_services=True), MINA)
    lost = await ask(office, recipient="103")
    async with office.autocommit() as tx:
        await NOTICES.claim(tx, 10, MINUTE, "w1")
    held = await timeline(admin, "notifications", lost)
    for _ in range(3):
        await travel(2 * MINUTE)
        async with office.autocommit() as tx:
            await NOTICES.claim(tx, 10, MINUTE, "w1")

    says = {each: await timeline(admin, "notifications", each) for each in (changed, at_once, off, later, lost)}

    assert "발송 직전에 제외했습니다: DM 수신 꺼짐" in says[changed]
    assert (
        "요청 시점에 발송에서 제외했습니다 (DM 수신 꺼짐): DM 수신 꺼짐, 이 분류의 수신 켜짐, 주소 정상"
        in says[at_once]
    )
    assert "발송 제외, DM 수신 꺼짐" in says[at_once]
    assert "알림을 취소함 (operator:mina)" in says[off]
    assert re.search(r"대기 중, 8시간 \d+분 뒤에 전달합니다", says[later])
    assert re.search(r"대기 중, w1의 리스가 (?:1분 0초|\d+초) 남았습니다", held)
    assert "w1의 3번째 시도는 결과가 확인되지 않았습니다: lease expired" in says[lost]
    assert "실패했습니다 (결과를 알 수 없음): lease expired" in says[lost]


def test_a_step_of_another_version_and_what_others_wrote_stay_as_they_are() -> None:
    korean, english = Translator("ko"), Translator("en")

    assert korean.translate("lease {} expired") == "lease {} expired"
    assert (
        korean.translate(Message("moved to the dead letters: {}; dead letter {}", "{0} pending", 7))
        == "데드 레터로 옮겼습니다: {0} pending · 데드 레터 7"
    )
    steps = DecisionStep.EMERGENCY, DecisionStep.NO_PREFERENCES
    assert korean.translate(Message("{} new {}", *steps)) == "emergency new no_preferences"
    assert english.translate(Message("{}, expired", Message("QUEUED"))) == "queued, expired"


def test_an_id_leads_to_its_page_whatever_follows_it() -> None:
    event = new_id()

    for says in (f"이벤트 {event}입니다", f"{event}", f"({event}),"):
        assert f'<a href="/x">{event}</a>' in link_ids(says, "published", {event: "/x"})
    assert "<a" not in link_ids(f"{event}0 0{event}", "published", {event: "/x"})
