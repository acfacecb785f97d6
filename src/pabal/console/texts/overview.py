"""The first page."""

SAYS: dict[str, tuple[str, str]] = {
    "relay carries": ("카카오톡 채널 ↔ 봇", "KakaoTalk channel ↔ bots"),
    "events carries": ("서비스 → 서비스", "service → service"),
    "notifications carries": ("이벤트 → 사람", "event → people"),
    "waiting": ("대기", "Waiting"),
    "oldest": ("가장 오래된 대기", "Oldest waiting"),
    "in flight": ("처리 중", "In flight"),
    "dead": ("실패", "Dead"),
    "nothing waits": ("없음", "none"),
    "needs a look": ("실패한 것이 있습니다. 살펴봐 주세요.", "Some could not be delivered and need a look."),
    "all well": ("모두 정상입니다.", "All is well."),
    "doorbell deaf": (
        "초인종(LISTEN)이 들리지 않아 1초 간격으로 확인합니다.",
        "The doorbell (LISTEN) is not heard; lanes are looked at every second instead.",
    ),
}
