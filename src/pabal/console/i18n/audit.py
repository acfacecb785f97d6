"""The audit log and its seals."""

SAYS: dict[str, tuple[str, str]] = {
    "by since": ("기간별", "By time"),
    "who did": ("누가", "Who"),
    "what begins": ("무엇을 (앞부분)", "What (how it begins)"),
    "what was done": ("무엇을", "What"),
    "to what": ("대상", "To what"),
    "at what time": ("언제", "When"),
    "details": ("자세히", "Details"),
    "from where": ("어디서", "From"),
    "search log": ("찾기", "Search"),
    "no deeds": ("아직 기록이 없습니다.", "Nothing was done yet."),
    "no such deeds": ("조건에 맞는 기록이 없습니다.", "Nothing like that was done."),
    "log looked so far": (
        "로그의 일부만 살펴봤습니다. 더 오래된 기록은 “이전”으로 이어서 찾을 수 있습니다.",
        "Only a part of the log was looked through. “Older” goes on from there.",
    ),
    "check seals": ("봉인 확인", "Check the seals"),
    "seals hold": ("봉인이 모두 맞습니다.", "The seals hold."),
    "seals broken": ("봉인과 맞지 않는 곳이 {}군데 있습니다.", "Places where the log is not as it was sealed: {}."),
    "seals checked": (
        "봉인 {seals}개와 그 안의 기록 {rows}건을 확인했습니다. 아직 봉인하지 않은 기록은 {unsealed}건입니다.",
        "Seals checked: {seals}, over {rows} entries. Entries not sealed yet: {unsealed}.",
    ),
    "seals all": ("로그 전체입니다.", "That is all of the log."),
    "seals left out": (
        "가장 최근 것만 확인했고 더 오래된 봉인 {}개는 보지 않았습니다. 전체는 pabal audit verify 로 확인하세요.",
        "These are the newest; older seals that were not looked at: {}. For all of them run pabal audit verify.",
    ),
    "seals ahead": (
        "마지막 봉인 뒤로 번호 {}개가 비어 있습니다. 서버가 갑자기 멈췄거나 끝이 잘렸을 수 있습니다.",
        "Seals counted after the last one: {}. The server crashed, or the end was cut off.",
    ),
    "breaks more": ("그 밖에 {}군데", "and {} more"),
    "note the head": (
        "마지막 봉인입니다. 다른 곳에 적어 두면 나중에 끝이 잘리지 않았는지 확인할 수 있습니다:",
        "The last seal. Noted down elsewhere, it tells later whether the end was cut off:",
    ),
    "break row_changed": ("바뀐 기록", "entry changed"),
    "break row_removed": ("없어진 기록", "entry removed"),
    "break row_added": ("끼워 넣은 기록", "entry put in"),
    "break seal_changed": ("바뀐 봉인", "seal changed"),
    "break seal_removed": ("없어진 봉인", "seal removed"),
    "break chain_cut": ("잘린 끝", "end cut off"),
    "break key_unknown": ("열쇠 없음", "key not here"),
}
