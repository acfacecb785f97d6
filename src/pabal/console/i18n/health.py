"""The health page."""

SAYS: dict[str, tuple[str, str]] = {
    "health good": ("살펴본 것이 모두 정상입니다.", "Everything that was looked at is well."),
    "health warning": ("주의할 것이 있습니다.", "Something wants attention."),
    "health bad": ("바로잡아야 할 것이 있습니다.", "Something has to be mended."),
    "findings": ("진단", "Findings"),
    "looked at": ("살펴본 때", "Looked at"),
    "look again": ("다시 살펴보기", "Look again"),
    "finding": ("항목", "What"),
    "finding seen": ("본 것", "Seen"),
    "finding advice": ("할 일", "What to do"),
    "finding level": ("판정", "Verdict"),
    "level good": ("정상", "good"),
    "level warning": ("주의", "warning"),
    "level bad": ("문제", "bad"),
    "settings in force": ("적용 중인 설정", "Settings in force"),
    "settings how": (
        "환경 변수나 .env 파일, 명령줄로 정하고 허브를 다시 켜면 바뀝니다. 비밀 값은 보여 주지 않습니다.",
        "Set in the environment, in a file .env or on the command line, and read at the start. Secrets are not shown.",
    ),
    "setting": ("설정", "Setting"),
    "setting value": ("값", "Value"),
    "setting about": ("설명", "About"),
    "setting unset": ("없음", "not set"),
    "settings default": ("기본값을 쓰는 설정 {}개", "Settings at their defaults: {}"),
}
