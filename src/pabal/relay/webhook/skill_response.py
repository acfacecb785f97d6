"""What the hub itself says to Kakao: skill responses of version 2.0."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

SkillResponseDict = dict[str, Any]
SKILL_VERSION = "2.0"


def text_response(*texts: str, quick_replies: Sequence[str] = ()) -> SkillResponseDict:
    """An answer on the spot. `quick` are words the user may send by touching them."""
    template: SkillResponseDict = {"outputs": [{"simpleText": {"text": text}} for text in texts]}
    if quick_replies:
        template["quickReplies"] = [{"label": word, "action": "message", "messageText": word} for word in quick_replies]
    return {"version": SKILL_VERSION, "template": template}


def callback_response(text: str | None) -> SkillResponseDict:
    """The answer will come through the callback; `text` is shown meanwhile."""
    answer: SkillResponseDict = {"version": SKILL_VERSION, "useCallback": True}
    return answer | {"data": {"text": text}} if text else answer


ChatLanguage = Literal["ko", "en"]


@dataclass(frozen=True, slots=True)
class ChatTexts:
    """What a chat user may read that no bot wrote. `{prefix}` is what commands begin with here."""

    hint: str
    pending: str
    blocked: str
    disabled: str
    no_callback: str
    unavailable: str
    too_late: str
    still_working: str
    expired: str
    paired: str
    replaced: str
    approval_requested: str
    code_missing: str
    wrong_code: str
    locked: str
    unpaired: str
    not_paired: str
    status_paired: str
    status_waiting: str
    page_link: str
    help: str


KOREAN_TEXTS = ChatTexts(
    hint="아직 연결된 봇이 없어요. 봇 화면에 나온 코드를 「{prefix}pair 코드」로 보내 주세요. 도움말: {prefix}help",
    pending="봇 주인의 승인을 기다리고 있어요. 승인되면 바로 대화할 수 있어요.",
    blocked="지금은 이 채널을 이용할 수 없어요.",
    disabled="연결된 봇이 지금 쉬고 있어요. 봇 주인에게 문의해 주세요.",
    no_callback="메시지를 봇에게 전했어요. 여기서는 답을 바로 보여 드릴 수 없으니, 잠시 뒤 한 번 더 말을 걸어 주세요.",
    unavailable="지금은 메시지를 받을 수 없어요. 전달되지 않았으니 잠시 뒤 다시 보내 주세요.",
    too_late="지금 연결이 느려요. 메시지가 전해지지 않았을 수 있으니, 답이 없으면 잠시 뒤 다시 보내 주세요.",
    still_working="아직 생각하고 있어요. 잠시 뒤 한 번 더 말을 걸면 답을 보여 드릴게요.",
    expired="봇이 오래 자리를 비워 지난 메시지를 전하지 못했어요. 다시 보내 주세요.",
    paired="연결됐어요! 이제 보내는 메시지는 봇에게 전해져요. 끊으려면 {prefix}unpair",
    replaced="이전 봇과의 연결을 끊고 새 봇에 연결했어요. 이제 보내는 메시지는 새 봇에게 전해져요.",
    approval_requested="코드를 확인했어요. 봇 주인이 승인하면 연결돼요.",
    code_missing="코드를 함께 보내 주세요. 예: {prefix}pair ABCD-2345",
    wrong_code="맞지 않거나 이미 쓴 코드예요. 새 코드를 받아 다시 보내 주세요.",
    locked="틀린 코드가 여러 번 와서 잠시 막아 두었어요. 약 {minutes}분 뒤에 다시 해 주세요.",
    unpaired="연결을 끊었어요. 전하지 못한 메시지는 봇에게 가지 않아요.",
    not_paired="연결된 봇이 없어요.",
    status_paired="봇과 연결되어 있어요. (연결: {since})",
    status_waiting="봇과 연결되어 있어요. (연결: {since}, 답을 기다리는 메시지 {waiting}개)",
    page_link="이 대화만 볼 수 있는 페이지예요. 30분 동안 열려요. 다른 사람에게 보내지 마세요.\n{link}",
    help=(
        "{prefix}pair 코드: 봇과 연결\n{prefix}unpair: 연결 끊기\n{prefix}status: 연결 상태\n"
        "{prefix}code: 내 대화 보기·지우기\n\n※ 이 서비스는 카카오에서 제공하는 공식 서비스가 아닙니다."
    ),
)

ENGLISH_TEXTS = ChatTexts(
    hint="No bot is connected yet. Send the code your bot shows as “{prefix}pair CODE”. Help: {prefix}help",
    pending="The bot's owner has yet to approve you. You can talk as soon as they do.",
    blocked="This channel is not available at the moment.",
    disabled="The bot you are connected to is resting. Please ask its owner.",
    no_callback="Your message went to the bot. Its answer cannot be shown here: write again in a moment to see it.",
    unavailable="Your message could not be taken just now and was not delivered. Please send it again in a moment.",
    too_late="The connection is slow right now. Your message may not have arrived: if no answer comes, send it again.",
    still_working="Still working on it. Write again in a moment to see the answer.",
    expired="The bot was away for too long and did not get your earlier message. Please send it again.",
    paired="Connected! What you write now goes to the bot. To leave: {prefix}unpair",
    replaced="The bot before was disconnected and the new one connected. What you write now goes to the new one.",
    approval_requested="The code is right. You are connected as soon as the bot's owner approves.",
    code_missing="Please send the code with it, like {prefix}pair ABCD-2345",
    wrong_code="This code is wrong or was used before. Please get a new one and try again.",
    locked="Too many wrong codes. Please try again in about {minutes} minutes.",
    unpaired="Disconnected. What was not delivered yet will not reach the bot.",
    not_paired="No bot is connected.",
    status_paired="You are connected to a bot. (since {since})",
    status_waiting="You are connected to a bot. (since {since}; {waiting} messages wait for an answer)",
    page_link="A page for this conversation only, open for 30 minutes. Do not pass it on.\n{link}",
    help=(
        "{prefix}pair CODE: connect to a bot\n{prefix}unpair: disconnect\n{prefix}status: how you are connected\n"
        "{prefix}code: see or erase your conversation\n\nThis is not an official Kakao service."
    ),
)

TEXTS_BY_LANGUAGE: dict[ChatLanguage, ChatTexts] = {"ko": KOREAN_TEXTS, "en": ENGLISH_TEXTS}


def chat_texts(language: ChatLanguage) -> ChatTexts:
    return TEXTS_BY_LANGUAGE[language]
