"""Everything the chat page says, in Korean and in English."""

from starlette.requests import Request

from pabal.console.texts import Language, translator_for

PAGE_TEXTS: dict[str, tuple[str, str]] = {
    "title": ("파발 데모 채널", "Pabal demo channel"),
    "plays": ("카카오톡을 흉내 낸 화면", "A page that plays KakaoTalk"),
    "open": ("이어져 있어요", "Connected"),
    "away": ("데모가 꺼졌어요. 다시 켜면 이어집니다.", "The demo has stopped. This page comes back when it does."),
    "console": ("콘솔", "Console"),
    "chat": ("대화", "Chat"),
    "hello": (
        "쓰는 말은 카카오가 하듯 허브의 웹훅으로 가고, 답은 콜백으로 돌아옵니다.",
        "What you write goes to the hub's webhook as Kakao would send it; answers come back through the callback.",
    ),
    "tabs": ("탭 하나가 한 사람이에요. 새 탭을 열면 다른 사람이 됩니다.", "Each tab is a person of its own."),
    "pair": ("봇이 기다려요. 이 코드를 보내 연결하세요.", "A bot is waiting. Send this code to connect to it:"),
    "own bot": (
        "플러그인의 릴레이 주소를 아래로 바꾸고, 플러그인이 보여 주는 코드를 「/pair 코드」로 보내세요.",
        "Point your plugin's relay URL here, then send the code it shows as “/pair CODE”:",
    ),
    "quick": ("바로 보내기", "Quick replies"),
    "write": ("메시지 쓰기", "Write a message"),
    "send": ("보내기", "Send"),
    "waits": ("답을 기다려요", "Waiting for the answer"),
    "lapsed": ("60초 안에 답이 오지 않아 콜백이 끝났어요.", "No answer within 60 seconds: the callback has ended."),
    "silent": ("스킬 서버가 5초 안에 답하지 않았어요.", "The skill server did not answer within 5 seconds."),
    "refused": ("스킬 서버가 거절했어요: 상태 ", "The skill server refused with status "),
    "picture": ("그림 보기", "Open the picture"),
    "call": ("전화: ", "Call "),
    "not kakao": (
        "카카오의 공식 서비스가 아닙니다. 아무것도 카카오로 가지 않습니다.",
        "Not an official Kakao service. Nothing here goes to Kakao.",
    ),
}


class PageTexts:
    """The page's words in one language: `t("send")`."""

    def __init__(self, language: Language) -> None:
        self.language: Language = language
        self._column = 0 if language == "ko" else 1

    def __call__(self, key: str) -> str:
        return PAGE_TEXTS[key][self._column]


def page_texts(request: Request) -> PageTexts:
    return PageTexts(translator_for(request).language)
