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
