"""Skill responses (version 2.0) that the hub itself sends, and the texts in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

SkillResponseDict = dict[str, Any]
SKILL_VERSION = "2.0"


def text_response(*texts: str, quick_replies: Sequence[str] = ()) -> SkillResponseDict:
    """An immediate response. The user sends a quick reply by tapping it."""
    template: SkillResponseDict = {"outputs": [{"simpleText": {"text": text}} for text in texts]}
    if quick_replies:
        template["quickReplies"] = [*map(build_quick_reply, quick_replies)]
    return {"version": SKILL_VERSION, "template": template}


def build_quick_reply(label: str) -> SkillResponseDict:
    return {"label": label, "action": "message", "messageText": label}


def callback_response(text: str | None) -> SkillResponseDict:
    """Promise a reply through the callback. KakaoTalk shows `text` until then."""
    response: SkillResponseDict = {"version": SKILL_VERSION, "useCallback": True}
    return response | {"data": {"text": text}} if text else response


ChatLanguage = Literal["ko", "en"]


@dataclass(frozen=True, slots=True)
class ChatTexts:
    """The texts a chat user reads that no bot wrote. `{prefix}` is the configured command prefix."""

    hint: str
    pending: str
    blocked: str
    disabled: str
    preparing: str
    check_answer: str
    not_ready: str
    nothing_to_check: str
    unavailable: str
    too_late: str
    rate_limited: str
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
    unnamed_bot: str
    status_online: str
    status_offline: str
    page_link: str
    command_unavailable: str
    help: str


KOREAN_TEXTS = ChatTexts(
    hint="아직 연결된 봇이 없어요. 봇에서 받은 코드를 “{prefix}pair 코드” 형식으로 보내 주세요. 도움말: {prefix}help",
    pending="봇 관리자의 승인을 기다리고 있어요. 승인되면 바로 대화할 수 있어요.",
    blocked="지금은 이 채널을 이용할 수 없어요.",
    disabled="연결된 봇을 지금은 이용할 수 없어요. 봇 관리자에게 문의해 주세요.",
    preparing="답변을 준비하고 있어요. 잠시 후 “답변 확인”을 누르면 보여 드릴게요.",
    check_answer="답변 확인",
    not_ready="아직 답변을 준비하고 있어요. 잠시 후 “답변 확인”을 다시 눌러 주세요.",
    nothing_to_check="더 확인할 답변이 없어요.",
    unavailable="일시적인 오류로 메시지를 전달하지 못했어요. 잠시 후 다시 보내 주세요.",
    too_late="지금 응답이 늦어지고 있어요. 메시지가 전달되지 않았을 수 있으니, 답변이 없으면 잠시 후 다시 보내 주세요.",
    rate_limited="짧은 시간에 메시지가 너무 많이 와서 이 메시지는 전달하지 못했어요. 잠시 후 다시 보내 주세요.",
    still_working="아직 답변을 준비하고 있어요. 잠시 후 “답변 확인”을 누르거나 메시지를 보내면 답변을 보여 드릴게요.",
    expired="봇이 오랫동안 응답하지 않아 지난 메시지를 전달하지 못했어요. 다시 보내 주세요.",
    paired="봇과 연결됐어요! 이제 보내는 메시지가 봇에게 전달돼요. 연결을 끊으려면 {prefix}unpair를 보내 주세요.",
    replaced="이전 봇과 연결을 끊고 새 봇과 연결했어요. 이제 보내는 메시지가 새 봇에게 전달돼요.",
    approval_requested="코드를 확인했어요. 봇 관리자가 승인하면 연결돼요.",
    code_missing="코드를 함께 보내 주세요. 예: {prefix}pair ABCD-2345",
    wrong_code="코드가 맞지 않거나 이미 사용됐어요. 새 코드를 받아 다시 보내 주세요.",
    locked="코드를 여러 번 잘못 입력해서 잠시 입력을 막았어요. 약 {minutes}분 뒤에 다시 시도해 주세요.",
    unpaired="봇과 연결을 끊었어요. 아직 전달되지 않은 메시지는 취소됐어요.",
    not_paired="연결된 봇이 없어요.",
    unnamed_bot="이름 없는 봇",
    status_online=(
        "{bot}: 지금 온라인이에요.\n연결한 때: {since}\n"
        "오늘 보낸 메시지 {messages}개, 받은 답변 {replies}개, 답변을 기다리는 메시지 {waiting}개"
    ),
    status_offline=(
        "{bot}: 지금은 오프라인이에요. 메시지를 보내 두면 봇이 돌아왔을 때 전달돼요.\n연결한 때: {since}\n"
        "오늘 보낸 메시지 {messages}개, 받은 답변 {replies}개, 답변을 기다리는 메시지 {waiting}개"
    ),
    page_link="이 대화를 확인·삭제할 수 있는 페이지예요. 30분 동안 열려요. 링크를 공유하지 마세요.\n{link}",
    command_unavailable="이 명령은 지금 사용할 수 없어요. 봇 관리자에게 문의해 주세요.",
    help=(
        "{prefix}pair 코드: 봇과 연결\n{prefix}unpair: 연결 끊기\n{prefix}status: 연결 상태 확인\n"
        "{prefix}code: 내 대화 확인·삭제\n\n※ 이 서비스는 카카오에서 제공하는 공식 서비스가 아니에요."
    ),
)

ENGLISH_TEXTS = ChatTexts(
    hint="You are not connected to a bot yet. Send the code from your bot as “{prefix}pair CODE”. Help: {prefix}help",
    pending="Waiting for the bot's owner to approve you. You can chat as soon as they do.",
    blocked="This channel is not available right now.",
    disabled="Your bot is not available right now. Please contact its owner.",
    preparing="The bot is preparing its answer. Tap “Check answer” in a moment to see it.",
    check_answer="Check answer",
    not_ready="The bot is still preparing its answer. Tap “Check answer” again in a moment.",
    nothing_to_check="There are no more answers to show.",
    unavailable="Your message could not be delivered. Please send it again in a moment.",
    too_late="This is taking longer than usual and your message may be lost. If you get no reply, send it again.",
    rate_limited="Too many messages in a short time: this one was not delivered. Please send it again in a moment.",
    still_working="The bot is still working on a reply. Tap “Check answer” or send a message in a moment to see it.",
    expired="The bot was offline for too long and did not get your earlier message. Please send it again.",
    paired="Connected! Your messages now go to the bot. To disconnect, send {prefix}unpair.",
    replaced="Disconnected from the previous bot and connected to the new one. Your messages now go to the new bot.",
    approval_requested="Code accepted. You will be connected once the bot's owner approves.",
    code_missing="Send the code with the command, for example: {prefix}pair ABCD-2345",
    wrong_code="This code is wrong or already used. Get a new code and try again.",
    locked="Too many wrong codes. Please try again in about {minutes} min.",
    unpaired="Disconnected. Messages that were not delivered yet are cancelled.",
    not_paired="You are not connected to a bot.",
    unnamed_bot="Unnamed bot",
    status_online=(
        "{bot} is online.\nConnected since {since}\n"
        "Today: {messages} messages sent, {replies} replies received, {waiting} waiting for a reply"
    ),
    status_offline=(
        "{bot} is offline. It gets your messages when it comes back.\nConnected since {since}\n"
        "Today: {messages} messages sent, {replies} replies received, {waiting} waiting for a reply"
    ),
    page_link="View or delete this conversation here. The link works for 30 minutes; do not share it.\n{link}",
    command_unavailable="This command is not available right now. Please contact the bot's owner.",
    help=(
        "{prefix}pair CODE: connect to a bot\n{prefix}unpair: disconnect\n{prefix}status: show the connection\n"
        "{prefix}code: view or delete your conversation\n\nThis is not an official Kakao service."
    ),
)

TEXTS_BY_LANGUAGE: dict[ChatLanguage, ChatTexts] = {"ko": KOREAN_TEXTS, "en": ENGLISH_TEXTS}


def chat_texts(language: ChatLanguage) -> ChatTexts:
    return TEXTS_BY_LANGUAGE[language]
