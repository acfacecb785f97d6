"""An operator's own page."""

SAYS: dict[str, tuple[str, str]] = {
    "role viewer": ("보기 전용", "viewer"),
    "role admin": ("관리자", "admin"),
    "signed in at": ("로그인한 곳", "Where you are signed in"),
    "with what": ("브라우저", "With"),
    "no browser said": ("알 수 없음", "unknown"),
    "signed in since": ("로그인", "Since"),
    "last seen": ("마지막 사용", "Last used"),
    "this one": ("지금 여기", "this one"),
    "end the session": ("끝내기", "End"),
    "end the others": ("나머지 모두 끝내기", "End the others"),
    "end sessions": (
        "다른 곳의 로그인 {}개를 끝냅니다.",
        "Sessions elsewhere that end: {}.",
    ),
    "sessions ended": ("로그인 {n}개를 끝냈습니다.", "Sessions ended: {n}."),
    "sessions are": (
        "로그인은 길어야 12시간, 쓰지 않으면 2시간 뒤에 끝납니다.",
        "A session ends after 12 hours, or after 2 without use.",
    ),
    "change password": ("비밀번호 바꾸기", "Change the password"),
    "old password": ("지금 비밀번호", "Password now"),
    "new password": ("새 비밀번호", "New password"),
    "new password again": ("새 비밀번호 한 번 더", "New password, once more"),
    "password ends sessions": (
        "바꾸면 다른 곳의 로그인은 모두 끝납니다.",
        "Whoever else is signed in as you is signed out by this.",
    ),
    "password changed": (
        "비밀번호를 바꾸고 다른 곳의 로그인을 모두 끝냈습니다.",
        "The password is changed, and you are signed out everywhere else.",
    ),
    "not the same twice": ("새 비밀번호 두 개가 서로 다릅니다.", "The new password is not the same twice."),
    "old password wrong": ("지금 비밀번호가 맞지 않습니다.", "The password you have now is another one."),
    "password rule": ("비밀번호는 8~1,000자입니다.", "A password has 8 to 1,000 characters."),
}
