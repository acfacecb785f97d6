"""Everything the console says, in Korean and in English."""

from typing import Literal

from starlette.requests import Request

Language = Literal["ko", "en"]

TEXTS: dict[str, tuple[str, str]] = {
    "overview": ("한눈에 보기", "Overview"),
    "sign in": ("로그인", "Sign in"),
    "sign out": ("로그아웃", "Sign out"),
    "name": ("이름", "Name"),
    "password": ("비밀번호", "Password"),
    "wrong": ("이름이나 비밀번호가 맞지 않습니다.", "The name or the password is wrong."),
    "too many": ("시도가 너무 많습니다. 잠시 뒤에 다시 해 주세요.", "Too many attempts. Try again in a moment."),
    "stale form": ("화면이 오래되었습니다. 다시 해 주세요.", "This page had grown old. Try again."),
    "where is the password": (
        "첫 비밀번호는 허브를 처음 켠 터미널에 한 번 표시됩니다.",
        "The first password was shown once, in the terminal that first started the hub.",
    ),
    "relay": ("중계", "Relay"),
    "events": ("이벤트", "Events"),
    "notifications": ("알림", "Notifications"),
    "relay carries": ("카카오톡 채널 ↔ 봇", "KakaoTalk channel ↔ bots"),
    "events carries": ("서비스 → 서비스", "service → service"),
    "notifications carries": ("이벤트 → 사람", "event → people"),
    "waiting": ("대기", "Waiting"),
    "oldest": ("가장 오래된 대기", "Oldest waiting"),
    "in flight": ("처리 중", "In flight"),
    "dead": ("실패", "Dead"),
    "nothing waits": ("없음", "none"),
    "database away": (
        "데이터베이스에 닿지 않습니다. 돌아오면 화면이 다시 살아납니다.",
        "The database is away. This page comes back when it does.",
    ),
    "no such page": ("그런 화면은 없습니다.", "There is no such page."),
    "needs a look": ("실패한 것이 있습니다. 살펴봐 주세요.", "Some could not be delivered and need a look."),
    "all well": ("모두 정상입니다.", "All is well."),
    "doorbell deaf": (
        "초인종(LISTEN)이 들리지 않아 1초 간격으로 확인합니다.",
        "The doorbell (LISTEN) is not heard; lanes are looked at every second instead.",
    ),
    "api": ("API", "API"),
    "not kakao": ("카카오의 공식 서비스가 아닙니다.", "Not an official Kakao service."),
    "language": ("English", "한국어"),
    "skip": ("본문으로", "Skip to content"),
    "my notices": ("내 알림", "My notifications"),
    "no link": (
        "이 링크는 이미 쓰였거나 만료되었습니다. 링크를 받은 곳에서 새로 받아 주세요.",
        "This link was used or has expired. Ask for a new one where you got it.",
    ),
    "leave": ("이 기기에서 나가기", "Sign out here"),
    "inbox": ("받은 알림", "Inbox"),
    "archived": ("보관함", "Archive"),
    "unread": ("읽지 않음", "unread"),
    "all read": ("모두 읽었습니다.", "Everything is read."),
    "read all": ("모두 읽음으로", "Mark all as read"),
    "mark read": ("읽음", "Mark as read"),
    "archive": ("보관", "Archive"),
    "nothing here": ("아직 받은 알림이 없습니다.", "Nothing here yet."),
    "nothing archived": ("보관한 알림이 없습니다.", "Nothing was archived."),
    "older": ("이전 알림", "Older"),
    "newest": ("최신 알림", "Newest"),
    "new notice": ("새 알림", "New notification"),
    "close": ("닫기", "Close"),
    "stream away": (
        "연결이 끊겼습니다. 돌아오면 놓친 알림까지 보여 드립니다.",
        "The connection is away. What is missed will be shown when it comes back.",
    ),
    "just now": ("방금", "just now"),
    "minutes ago": ("{}분 전", "{} min ago"),
    "hours ago": ("{}시간 전", "{} h ago"),
    "days ago": ("{}일 전", "{} d ago"),
    "about payment": ("결제", "Payment"),
    "about recovery": ("복구", "Recovery"),
    "about antinuke": ("AntiNuke", "AntiNuke"),
    "about marketing": ("혜택·소식", "Offers"),
    "about system": ("안내", "System"),
    "emergency": ("긴급", "Emergency"),
    "wishes": ("알림 설정", "What to be told"),
    "wishes short": ("설정", "Settings"),
    "save": ("저장", "Save"),
    "saved": ("저장했습니다.", "Saved."),
    "not saved": ("저장하지 못했습니다. 다시 해 주세요.", "This could not be saved. Try again."),
    "dm_enabled": ("Discord 개인 메시지", "Direct messages on Discord"),
    "dm_enabled about": ("끄면 DM을 보내지 않습니다.", "Off: no direct messages at all."),
    "payment_notifications": ("결제", "Payments"),
    "payment_notifications about": ("결제, 환불, 구독", "Payments, refunds, subscriptions"),
    "recovery_notifications": ("복구", "Recovery"),
    "recovery_notifications about": ("백업과 복구의 결과", "What became of backups and restores"),
    "antinuke_notifications": ("AntiNuke", "AntiNuke"),
    "antinuke_notifications about": ("긴급 알림은 꺼도 보내 드립니다.", "Emergencies come even when this is off."),
    "marketing_notifications": ("혜택·소식 (광고)", "Offers and news (advertising)"),
    "marketing_notifications about": (
        "밤 9시부터 아침 8시까지는 보내지 않습니다.",
        "Not between 9 in the evening and 8 in the morning, Korean time.",
    ),
    "night_consent": ("밤에도 광고 받기", "Advertising at night too"),
    "night_consent about": (
        "밤 9시부터 아침 8시까지의 수신에 동의합니다.",
        "I agree to advertising from 9 pm to 8 am.",
    ),
    "consent since": ("동의한 날:", "Agreed on"),
    "notices in": ("알림 언어", "Language of notifications"),
    "as the hub": ("기본값", "Default"),
}


class Texts:
    """The console's words in one language: `t("waiting")`."""

    def __init__(self, language: Language) -> None:
        self.language: Language = language
        self._column = 0 if language == "ko" else 1

    def __call__(self, key: str) -> str:
        return TEXTS[key][self._column]

    @property
    def other(self) -> Language:
        return "en" if self.language == "ko" else "ko"


def texts_for(request: Request) -> Texts:
    """The language somebody chose, or the one their browser asks for first."""
    chosen = request.cookies.get("pabal_language")
    if chosen in {"ko", "en"}:
        return Texts("ko" if chosen == "ko" else "en")
    for asked in request.headers.get("accept-language", "").split(","):
        language = asked.split(";")[0].strip().lower()[:2]
        if language in {"ko", "en"}:
            return Texts("ko" if language == "ko" else "en")
    return Texts("ko")
