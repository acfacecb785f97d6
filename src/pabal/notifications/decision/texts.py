"""The reasons in words: every step, end and outcome of a request, in Korean and in English."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pabal.notifications.decision.decide import DecisionStep, NotificationCategory, NotificationChannel, SuppressReason

ExplanationLanguage = Literal["ko", "en"]
BilingualText = tuple[str, str]
"""The same in Korean and in English."""

CATEGORY_TEXTS: Mapping[str, BilingualText] = {
    NotificationCategory.PAYMENT: ("결제", "payment"),
    NotificationCategory.RECOVERY: ("복구", "recovery"),
    NotificationCategory.ANTINUKE: ("AntiNuke", "AntiNuke"),
    NotificationCategory.MARKETING: ("광고", "advertising"),
    NotificationCategory.SYSTEM: ("시스템", "system"),
}
CHANNEL_TEXTS: Mapping[str, BilingualText] = {
    NotificationChannel.USER_DM: ("Discord 개인 메시지", "a direct message on Discord"),
    NotificationChannel.GUILD_AUDIT_CHANNEL: ("길드 감사 채널", "a guild's audit channel"),
    NotificationChannel.DASHBOARD_TOAST: ("대시보드", "the dashboard"),
}
PART_TITLES: Mapping[str, BilingualText] = {
    "asked": ("누가 요청했나", "Who asked"),
    "decided": ("요청할 때의 판단", "Decided when it was asked for"),
    "again": ("보낼 때의 판단", "Decided again when it was to be sent"),
    "attempt": ("시도", "Attempts"),
    "address": ("주소", "The address"),
    "ended": ("결과", "Where it ended"),
    "next": ("다음에는", "For the next one"),
}
STEP_TEXTS: Mapping[str, BilingualText] = {
    DecisionStep.EMERGENCY: (
        "긴급 알림이라 수신 설정과 상관없이 보냅니다.",
        "It is an emergency, which goes out whatever is switched off.",
    ),
    DecisionStep.NO_PREFERENCES: (
        "길드 감사 채널에는 수신 설정이 없습니다.",
        "A guild's audit channel has no preferences.",
    ),
    DecisionStep.DM_ENABLED: ("개인 메시지를 받습니다.", "They take direct messages."),
    DecisionStep.DM_DISABLED: ("개인 메시지를 꺼 두었습니다.", "They switched direct messages off."),
    DecisionStep.CATEGORY_ON: ("{category} 알림을 받습니다.", "They take {category} notices."),
    DecisionStep.CATEGORY_OFF: ("{category} 알림을 꺼 두었습니다.", "They switched {category} notices off."),
    DecisionStep.NO_FLAG: ("{category} 알림은 끌 수 없습니다.", "Nobody can switch {category} notices off."),
    DecisionStep.ADDRESS_HEALTHY: ("이 주소가 거절한 적은 없었습니다.", "The address had not refused us."),
    DecisionStep.ADDRESS_UNHEALTHY: ("이 주소는 앞서 우리를 거절했습니다.", "The address had refused us before."),
    DecisionStep.BY_DAY: (
        "한국 시각으로 낮이라 광고를 보낼 수 있습니다.",
        "It is daytime in Korea, when advertising may be sent.",
    ),
    DecisionStep.NIGHT_CONSENT: ("밤에도 광고를 받겠다고 동의했습니다.", "They agreed to advertising at night."),
    DecisionStep.NIGHT_WAITS: (
        "한국 시각으로 밤이라 광고는 아침 8시까지 기다립니다.",
        "It is night in Korea: advertising waits until eight in the morning.",
    ),
    DecisionStep.AT_SEND: ("보내기 직전에 다시 확인했습니다.", "It was looked at again as it was about to be sent."),
    DecisionStep.FIRST_OF_INCIDENT: (
        "같은 일을 막 알린 적이 없고, 긴급 알림이 몰리지도 않았습니다.",
        "The same incident had not been told just before, and there was no storm of emergencies.",
    ),
    DecisionStep.SAME_INCIDENT: (
        "같은 일을 1분 안에 이미 알렸습니다.",
        "The same incident had been told within the minute.",
    ),
    DecisionStep.TOO_MANY_EMERGENCIES: (
        "10분 동안 긴급 알림이 이미 다섯 건 나가서, 그다음은 요약 하나로 모읍니다.",
        "Five emergencies had gone out within ten minutes; what comes beyond is counted in one summary.",
    ),
    DecisionStep.RAISED: (
        "긴급 알림이 제때 전해지지 않아 운영자에게 알렸습니다. 사람에게 가던 것은 대시보드에도 넣었습니다.",
        "An emergency did not get through in time: the operator was told, and a person finds it in the dashboard.",
    ),
}
END_TEXTS: Mapping[str, BilingualText] = {
    SuppressReason.DM_DISABLED: (
        "보내지 않았습니다. 개인 메시지를 꺼 두었습니다.",
        "Not sent: they switched direct messages off.",
    ),
    SuppressReason.CATEGORY_OFF: (
        "보내지 않았습니다. {category} 알림을 꺼 두었습니다.",
        "Not sent: they switched {category} notices off.",
    ),
    SuppressReason.DUPLICATE: (
        "보내지 않았습니다. 같은 알림이 이미 있었습니다.",
        "Not sent: the same notice had been asked for before.",
    ),
    SuppressReason.ADDRESS_UNHEALTHY: (
        "보내지 않았습니다. 앞서 이 주소가 우리를 거절했습니다.",
        "Not sent: the address had refused us.",
    ),
    SuppressReason.EXPIRED: (
        "보내지 않았습니다. 차례가 오기 전에 기한이 지났습니다.",
        "Not sent: its time was over before its turn came.",
    ),
    SuppressReason.STORM: (
        "따로 보내지 않았습니다. 긴급 알림이 한꺼번에 몰렸습니다.",
        "Not sent by itself: there was a storm of emergencies.",
    ),
    SuppressReason.CANCELLED: (
        "보내지 않았습니다. 요청이 취소되었습니다.",
        "Not sent: it was called off.",
    ),
    "exhausted": (
        "실패했습니다. 세 번의 시도가 모두 전해지지 않았습니다.",
        "Failed: three attempts did not get through.",
    ),
    "refused": ("실패했습니다. 받는 쪽이 거절했습니다.", "Failed: the receiver refused it for good."),
    "unknown": ("실패했습니다. 전해졌는지 아무도 모릅니다.", "Failed: nobody knows whether it got through."),
    "unrenderable": ("실패했습니다. 문구를 쓸 수 없었습니다.", "Failed: its text could not be written."),
}
NEXT_STEP_TEXTS: Mapping[str, BilingualText] = {
    SuppressReason.DM_DISABLED: (
        "개인 메시지를 다시 켜면 다음 알림부터 갑니다: pabal notify prefs {recipient} --set dm_enabled=true",
        "The next one comes once they allow direct messages: pabal notify prefs {recipient} --set dm_enabled=true",
    ),
    SuppressReason.CATEGORY_OFF: (
        "{category} 알림을 다시 켜면 다음 알림부터 갑니다: pabal notify prefs {recipient} --set {flag}=true",
        "The next one comes once they want {category} notices: pabal notify prefs {recipient} --set {flag}=true",
    ),
    SuppressReason.DUPLICATE: (
        "다른 알림이라면 다른 키로 요청해야 합니다.",
        "One that is not the same is to be asked for under a key of its own.",
    ),
    SuppressReason.ADDRESS_UNHEALTHY: (
        "받는 쪽이 봇의 메시지를 허용한 뒤에 주소를 풀어 주세요: pabal notify heal {channel} {recipient}",
        "Let the receiver allow the bot's messages, then heal the address: pabal notify heal {channel} {recipient}",
    ),
    SuppressReason.EXPIRED: (
        "기한을 늘리거나, 알림이 밀리는 까닭을 살펴봐 주세요: pabal doctor",
        "Give the next one more time, or see why notices are late: pabal doctor",
    ),
    SuppressReason.STORM: (
        "그대로 두면 됩니다. 몰림이 가라앉으면 다음 긴급 알림은 바로 갑니다.",
        "Nothing: once the storm is over the next emergency goes out at once.",
    ),
    SuppressReason.CANCELLED: (
        "막는 것은 없습니다. 다시 요청하면 갑니다.",
        "Nothing is in the way of the next one.",
    ),
    "exhausted": (
        "위의 마지막 오류를 없애 주세요. 다음 알림은 새로 세 번 시도합니다.",
        "Mend what the last attempt complains of; the next one has three attempts of its own.",
    ),
    "refused": (
        "받는 쪽이 봇의 메시지를 허용해야 합니다. 주소가 막혀 있으면 그 뒤에: pabal notify heal {channel} {recipient}",
        "Let the receiver allow the bot's messages; an unhealthy address then: pabal notify heal {channel} {recipient}",
    ),
    "unknown": (
        "받았는지 물어보고, 받지 못했다면 다시 요청해 주세요.",
        "Ask whether it arrived; if not, ask for it again.",
    ),
    "unrenderable": (
        "템플릿과 값이 다시 맞아야 합니다: pabal notify check, pabal notify preview {template}",
        "The template and what it is told must fit again: pabal notify check, pabal notify preview {template}",
    ),
}
OUTCOME_TEXTS: Mapping[str, BilingualText] = {
    "done": ("{attempt}번째 시도: 받는 쪽이 받았습니다.", "Attempt {attempt}: it was taken."),
    "retry": ("{attempt}번째 시도: 전해지지 않았습니다. {why}", "Attempt {attempt} did not get through: {why}"),
    "snooze": ("미뤘습니다. 시도로 세지 않습니다. {why}", "Put off, which spends no attempt: {why}"),
    "dead": ("{attempt}번째 시도: 더는 시도하지 않습니다. {why}", "Attempt {attempt} was the last: {why}"),
    "suppressed": ("보내려던 때에 그만두었습니다.", "It was let be as it was about to be sent."),
    "unknown": (
        "{attempt}번째 시도: 보내던 작업자가 돌아오지 않아 결과를 모릅니다. {why}",
        "Attempt {attempt}: whoever sent it never came back to say what came of it: {why}",
    ),
}
EXPLANATION_TEXTS: Mapping[str, BilingualText] = {
    "rule": (
        "{source} 서비스의 이벤트 {event} 때문에 규칙 「{rule}」에 따라 요청되었습니다.",
        "The rule {rule} asked for it, because of the event {event} of the service {source}.",
    ),
    "hub": ("허브가 스스로 요청했습니다.", "The hub itself asked for it."),
    "sql": ("데이터베이스 로그인 {name}에서 SQL로 요청했습니다.", "The database login {name} asked for it in SQL."),
    "cli": ("{name} 님이 터미널에서 요청했습니다.", "{name} asked for it at a terminal."),
    "operator": ("{name} 님이 콘솔에서 요청했습니다.", "{name} asked for it in the console."),
    "service": ("{name} 서비스가 요청했습니다.", "The service {name} asked for it."),
    "repeats": ("실패한 알림 {id}을(를) 다시 보내는 것입니다.", "It sends {id} again, which had failed."),
    "what": (
        "{template} 알림, 받는 곳은 {channel} {recipient}입니다.",
        "It is {template}, for {channel}: {recipient}.",
    ),
    "undecided": (
        "요청할 때에는 수신 설정을 보지 않았습니다. 보낼 때에 봅니다.",
        "What they want was not asked when it was made; it is when it is sent.",
    ),
    "again": (
        "보내기 직전에 다시 확인했고, 막는 것이 없었습니다.",
        "It was looked at again as it was about to be sent, and nothing stood in the way.",
    ),
    "message": ("Discord 메시지 번호는 {message_id}입니다.", "On Discord it is the message {message_id}."),
    "dry run": (
        "Discord 토큰이 없어 보내는 대신 기록했습니다.",
        "There is no Discord token here: it was written down instead of sent.",
    ),
    "unhealthy": (
        "이 주소는 {since}부터 우리를 거절하고 있습니다: {why}",
        "This address refuses us since {since}: {why}",
    ),
    "healthy": ("이 주소는 지금 막혀 있지 않습니다.", "The address is healthy now."),
    "sent": ("{at}에 보냈습니다.", "It was sent at {at}."),
    "unseen": ("대시보드에 있고, 아직 보지 않았습니다.", "It is in the dashboard, and was not on a screen yet."),
    "seen": ("대시보드에서 보았지만 아직 읽지 않았습니다.", "It was on a screen, but not read yet."),
    "read": ("대시보드에서 {at}에 읽었습니다.", "It was read at {at}."),
    "archived": ("대시보드에서 {at}에 보관했습니다.", "It was put away at {at}."),
    "gone": ("대시보드에 더는 없습니다.", "It is no longer in the dashboard."),
    "held": ("지금 {worker} 작업자가 보내고 있습니다.", "{worker} is sending it this moment."),
    "due": ("보낼 차례를 기다리고 있습니다.", "It is due, and waits for a worker."),
    "later": ("{at}에 보낼 예정입니다.", "It waits until {at}."),
    "resend": (
        "고친 뒤에 이 알림을 다시 보내려면: pabal notify again {id}",
        "To send this one again once that is mended: pabal notify again {id}",
    ),
    "resent": ("{id} 알림으로 다시 요청했습니다.", "It was asked for again, as {id}."),
    "failure": ("마지막 오류: {why}", "The last error: {why}"),
}


def format_bilingual(text: BilingualText, language: ExplanationLanguage, **facts: str) -> str:
    return text[0 if language == "ko" else 1].format_map(facts)


def format_decision_steps(steps: Sequence[str], category: str, language: ExplanationLanguage) -> list[str]:
    """A chain of reasons; a step that another version wrote is told by its name."""
    named = format_bilingual(CATEGORY_TEXTS[category], language)
    return [
        format_bilingual(STEP_TEXTS[step], language, category=named) if step in STEP_TEXTS else step for step in steps
    ]
