"""Every decision step, end and outcome of a notification in words, in Korean and in English."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pabal.notifications.decision.decide import DecisionStep, NotificationCategory, NotificationChannel, SuppressReason

ExplanationLanguage = Literal["ko", "en"]
BilingualText = tuple[str, str]
"""Korean, English."""

CATEGORY_TEXTS: Mapping[str, BilingualText] = {
    NotificationCategory.PAYMENT: ("결제", "payment"),
    NotificationCategory.RECOVERY: ("복구", "recovery"),
    NotificationCategory.ANTINUKE: ("AntiNuke", "AntiNuke"),
    NotificationCategory.MARKETING: ("광고", "marketing"),
    NotificationCategory.SYSTEM: ("시스템", "system"),
}
CHANNEL_TEXTS: Mapping[str, BilingualText] = {
    NotificationChannel.USER_DM: ("Discord DM", "Discord direct message"),
    NotificationChannel.GUILD_AUDIT_CHANNEL: ("길드 감사 채널", "guild audit channel"),
    NotificationChannel.DASHBOARD_TOAST: ("대시보드", "dashboard"),
}
PART_TITLES: Mapping[str, BilingualText] = {
    "asked": ("요청", "Request"),
    "decided": ("요청할 때의 판단", "Decision at request time"),
    "again": ("보낼 때의 판단", "Decision at send time"),
    "attempt": ("시도", "Attempts"),
    "address": ("주소", "Address"),
    "ended": ("결과", "Result"),
    "next": ("다음 할 일", "What to do next"),
}
STEP_TEXTS: Mapping[str, BilingualText] = {
    DecisionStep.USER_PREFERENCES: (
        "이 계정과 연결된 가입 사용자의 수신 설정을 따릅니다.",
        "The preferences of the registered user linked to this account apply.",
    ),
    DecisionStep.SERVICE_LINK_PREFERENCES: (
        "보내는 서비스가 이 계정에 지정한 가입 사용자의 수신 설정도 함께 따릅니다.",
        "The preferences of the account apply, and those of the registered user that the sending service linked.",
    ),
    DecisionStep.EMERGENCY: (
        "긴급 알림이라 수신 설정과 상관없이 보냅니다.",
        "This is an emergency, which overrides preferences.",
    ),
    DecisionStep.NO_PREFERENCES: (
        "길드 감사 채널에는 수신 설정이 없습니다.",
        "Guild audit channels have no preferences.",
    ),
    DecisionStep.DM_ENABLED: ("DM 수신이 켜져 있습니다.", "Direct messages are on."),
    DecisionStep.DM_DISABLED: ("DM 수신이 꺼져 있습니다.", "Direct messages are off."),
    DecisionStep.CATEGORY_ON: ("{category} 알림이 켜져 있습니다.", "Notifications for {category} are on."),
    DecisionStep.CATEGORY_OFF: ("{category} 알림이 꺼져 있습니다.", "Notifications for {category} are off."),
    DecisionStep.NO_FLAG: ("{category} 알림은 끌 수 없습니다.", "Notifications for {category} cannot be turned off."),
    DecisionStep.ADDRESS_HEALTHY: ("이 주소는 정상입니다.", "The address is healthy."),
    DecisionStep.ADDRESS_UNHEALTHY: (
        "이 주소는 앞서 메시지를 거부했습니다.",
        "The address has refused an earlier message.",
    ),
    DecisionStep.BY_DAY: (
        "한국 시각으로 낮이라 광고를 보낼 수 있습니다.",
        "It is daytime in Korea, so marketing may be sent.",
    ),
    DecisionStep.NIGHT_CONSENT: (
        "야간 광고 수신에 동의했습니다.",
        "The recipient has agreed to marketing at night.",
    ),
    DecisionStep.NIGHT_WAITS: (
        "한국 시각으로 밤이라 광고는 아침 8시에 보냅니다.",
        "It is night in Korea, so marketing is sent at 08:00.",
    ),
    DecisionStep.RATE_LIMIT_WAITS: (
        "이벤트를 발행한 서비스의 분당 알림 한도를 넘어 차례를 기다립니다.",
        "It waits for the rate limit of the service that published the event.",
    ),
    DecisionStep.NO_TRANSPORT: (
        "이 허브에 Discord 토큰이 없어 Discord로 보낼 수 없습니다.",
        "This hub has no Discord token, so nothing can be sent to Discord.",
    ),
    DecisionStep.AT_SEND: ("보내기 직전에 다시 확인했습니다.", "Checked again before sending."),
    DecisionStep.FIRST_OF_INCIDENT: (
        "최근 1분 안에 같은 인시던트를 알린 적이 없고, 긴급 알림이 몰리지도 않았습니다.",
        "The incident was not reported in the last minute, and there was no storm of emergencies.",
    ),
    DecisionStep.SAME_INCIDENT: (
        "같은 인시던트를 1분 안에 이미 알렸습니다.",
        "The same incident was reported in the last minute.",
    ),
    DecisionStep.TOO_MANY_EMERGENCIES: (
        "최근 10분 동안 긴급 알림 5건을 이미 보냈습니다. 이후의 알림은 요약 한 건으로 모읍니다.",
        "Five emergencies were sent in the last ten minutes. Further ones are counted in one summary.",
    ),
    DecisionStep.RAISED: (
        "긴급 알림이 제때 전달되지 않아 운영자에게 알렸습니다. 개인에게 보낸 알림은 대시보드에도 표시합니다.",
        "The emergency was not delivered in time. The operator was alerted; a person sees it in the dashboard.",
    ),
}
END_TEXTS: Mapping[str, BilingualText] = {
    SuppressReason.DM_DISABLED: (
        "보내지 않았습니다. DM 수신이 꺼져 있습니다.",
        "Not sent: direct messages are off.",
    ),
    SuppressReason.CATEGORY_OFF: (
        "보내지 않았습니다. {category} 알림이 꺼져 있습니다.",
        "Not sent: notifications for {category} are off.",
    ),
    SuppressReason.DUPLICATE: (
        "보내지 않았습니다. 같은 알림이 이미 있습니다.",
        "Not sent: the same notification was requested before.",
    ),
    SuppressReason.ADDRESS_UNHEALTHY: (
        "보내지 않았습니다. 앞서 이 주소가 메시지를 거부했습니다.",
        "Not sent: the address has refused an earlier message.",
    ),
    SuppressReason.EXPIRED: (
        "보내지 않았습니다. 보내기 전에 유효 시간이 지났습니다.",
        "Not sent: it expired before it could be sent.",
    ),
    SuppressReason.STORM: (
        "따로 보내지 않았습니다. 긴급 알림이 한꺼번에 몰렸습니다.",
        "Not sent on its own: there was a storm of emergencies.",
    ),
    SuppressReason.CANCELLED: ("보내지 않았습니다. 요청이 취소되었습니다.", "Not sent: it was cancelled."),
    SuppressReason.NO_TRANSPORT: (
        "보내지 않았습니다. 이 허브에 Discord 토큰이 없습니다.",
        "Not sent: this hub has no Discord token.",
    ),
    "exhausted": ("실패했습니다. 세 번 시도했지만 전달하지 못했습니다.", "Failed: all three attempts failed."),
    "refused": ("실패했습니다. 수신자가 거부했습니다.", "Failed: the recipient's address refused it."),
    "unknown": (
        "실패했습니다. 워커가 응답하지 않아 전달 여부를 알 수 없습니다.",
        "Failed: the worker disappeared, so it may or may not have been delivered.",
    ),
    "unrenderable": ("실패했습니다. 본문을 만들지 못했습니다.", "Failed: the text could not be rendered."),
}
NEXT_STEP_TEXTS: Mapping[str, BilingualText] = {
    SuppressReason.DM_DISABLED: (
        "DM 수신을 켜면 다음 알림부터 보냅니다: pabal person preferences {recipient} --set dm_enabled=true",
        "For the next one, turn on direct messages: pabal person preferences {recipient} --set dm_enabled=true",
    ),
    SuppressReason.CATEGORY_OFF: (
        "{category} 알림을 켜면 다음 알림부터 보냅니다: pabal person preferences {recipient} --set {flag}=true",
        "For the next one, turn on {category} notifications: pabal person preferences {recipient} --set {flag}=true",
    ),
    SuppressReason.DUPLICATE: (
        "다른 알림이라면 다른 키로 요청해 주세요.",
        "If it is a different notification, request it with another key.",
    ),
    SuppressReason.ADDRESS_UNHEALTHY: (
        "수신자가 봇의 메시지를 허용한 뒤 주소를 정상으로 표시해 주세요: pabal address enable {channel} {recipient}",
        "When the recipient allows the bot's messages, mark it as working: pabal address enable {channel} {recipient}",
    ),
    SuppressReason.EXPIRED: (
        "유효 시간을 늘리거나, 알림이 밀리는 원인을 확인해 주세요: pabal doctor",
        "Use a longer time to live, or find out why notifications are late: pabal doctor",
    ),
    SuppressReason.STORM: (
        "할 일이 없습니다. 상황이 가라앉으면 다음 긴급 알림은 바로 보냅니다.",
        "No action needed. After the storm, the next emergency is sent at once.",
    ),
    SuppressReason.NO_TRANSPORT: (
        "PABAL_DISCORD_TOKEN을 설정하고 허브를 다시 시작하면 다음 알림부터 보냅니다.",
        "For the next one, set PABAL_DISCORD_TOKEN and restart the hub.",
    ),
    SuppressReason.CANCELLED: ("필요하면 다시 요청해 주세요.", "Request it again if it is still needed."),
    "exhausted": (
        "위의 마지막 오류를 해결해 주세요. 다음 알림은 다시 세 번 시도합니다.",
        "Fix the last error above. The next notification has three attempts of its own.",
    ),
    "refused": (
        "수신자가 봇의 메시지를 허용한 뒤 실행해 주세요: pabal address enable {channel} {recipient}",
        "When the recipient allows the bot's messages, run: pabal address enable {channel} {recipient}",
    ),
    "unknown": (
        "받았는지 확인하고, 받지 못했다면 다시 보내 주세요.",
        "Ask the recipient whether it arrived. If not, send it again.",
    ),
    "unrenderable": (
        "템플릿과 페이로드가 맞는지 확인해 주세요: pabal template check, pabal template preview {template}",
        "Check that the template and the payload match: pabal template check, pabal template preview {template}",
    ),
}
OUTCOME_TEXTS: Mapping[str, BilingualText] = {
    "done": ("{attempt}번째 시도: 전달했습니다.", "Attempt {attempt}: delivered."),
    "retry": ("{attempt}번째 시도: 실패했습니다. {why}", "Attempt {attempt} failed: {why}"),
    "snooze": ("연기했습니다. 시도 횟수에 포함되지 않습니다. {why}", "Delayed, without counting an attempt: {why}"),
    "dead": (
        "{attempt}번째 시도: 최종 실패했습니다. {why}",
        "Attempt {attempt} failed permanently: {why}",
    ),
    "suppressed": ("보내기 직전에 중단했습니다.", "Suppressed before sending."),
    "unknown": (
        "{attempt}번째 시도: 워커가 응답하지 않아 결과를 알 수 없습니다. {why}",
        "Attempt {attempt}: unknown, the worker disappeared: {why}",
    ),
}
EXPLANATION_TEXTS: Mapping[str, BilingualText] = {
    "rule": (
        "규칙 “{rule}”에 따라 {source} 서비스의 이벤트 {event}에서 만들어졌습니다.",
        "Requested by the rule {rule}, because of the event {event} from the service {source}.",
    ),
    "hub": ("허브가 요청했습니다.", "Requested by the hub."),
    "sql": ("데이터베이스 로그인 {name}에서 SQL로 요청했습니다.", "Requested in SQL by the database login {name}."),
    "cli": ("{name} 님이 터미널에서 요청했습니다.", "Requested by {name} in a terminal."),
    "operator": ("{name} 님이 콘솔에서 요청했습니다.", "Requested by {name} in the console."),
    "service": ("{name} 서비스가 요청했습니다.", "Requested by the service {name}."),
    "repeats": ("실패한 알림 {id} 건을 다시 보내는 알림입니다.", "It sends the failed notification {id} again."),
    "what": (
        "템플릿: {template}, 받는 곳: {channel} {recipient}",
        "Template: {template}, recipient: {channel} {recipient}",
    ),
    "account preferences": (
        "이 계정의 수신 설정을 따릅니다. 가입 사용자와 연결되지 않았습니다.",
        "The account's own preferences apply. It is not linked to a registered user.",
    ),
    "no transport": (
        "Discord 토큰을 기다리고 있습니다. PABAL_DISCORD_TOKEN을 설정하고 허브를 다시 시작하면 바로 보냅니다.",
        "Waits for a Discord token: set PABAL_DISCORD_TOKEN and restart the hub, and it is sent at once.",
    ),
    "undecided": (
        "요청할 때는 수신 설정을 확인하지 않았습니다. 보낼 때 확인합니다.",
        "Preferences were not checked at request time. They are checked at send time.",
    ),
    "again": (
        "보내기 직전에 다시 확인했고, 문제가 없었습니다.",
        "Checked again before sending; nothing had changed.",
    ),
    "message": ("Discord 메시지 ID: {message_id}", "Discord message ID: {message_id}."),
    "dry run": (
        "모의 실행(dry run) 중이라 실제로 보내지 않고 기록만 했습니다.",
        "This hub is in dry-run mode, so it was logged instead of sent.",
    ),
    "unhealthy": (
        "이 주소는 {since}부터 메시지를 거부하고 있습니다: {why}",
        "This address has refused messages since {since}: {why}",
    ),
    "healthy": ("이 주소는 지금 정상입니다.", "The address is healthy now."),
    "sent": ("{at}에 보냈습니다.", "Sent at {at}."),
    "unseen": ("대시보드에 있고, 아직 보지 않았습니다.", "In the dashboard, not seen yet."),
    "seen": ("대시보드에서 보았지만 아직 읽지 않았습니다.", "Seen in the dashboard, not read yet."),
    "read": ("대시보드에서 {at}에 읽었습니다.", "Read at {at}."),
    "archived": ("대시보드에서 {at}에 보관했습니다.", "Archived at {at}."),
    "gone": ("대시보드에서 삭제되었습니다.", "No longer in the dashboard."),
    "held": ("지금 워커 {worker}에서 보내고 있습니다.", "{worker} is sending it now."),
    "due": ("워커를 기다리고 있습니다.", "Due now, waiting for a worker."),
    "later": ("{at}에 보낼 예정입니다.", "Scheduled for {at}."),
    "resend": (
        "원인을 해결한 뒤 이 알림을 다시 보내려면: pabal notification resend {id}",
        "To send this notification again after fixing the cause: pabal notification resend {id}",
    ),
    "resent": ("{id} 알림으로 다시 보냈습니다.", "Sent again as {id}."),
    "failure": ("마지막 오류: {why}", "Last error: {why}"),
}


def format_bilingual(text: BilingualText, language: ExplanationLanguage, **facts: str) -> str:
    return text[0 if language == "ko" else 1].format_map(facts)


def format_decision_steps(steps: Sequence[str], category: str, language: ExplanationLanguage) -> list[str]:
    """The steps in words. A step of another version is shown by its name."""
    category_text = format_bilingual(CATEGORY_TEXTS[category], language)
    return [
        format_bilingual(STEP_TEXTS[step], language, category=category_text) if step in STEP_TEXTS else step
        for step in steps
    ]
