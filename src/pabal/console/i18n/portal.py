"""The owner's portal."""

SAYS: dict[str, tuple[str, str]] = {
    "wicket portal": ("봇 주인 화면", "Your bot"),
    "my bot": ("내 봇", "My bot"),
    "my users": ("내 봇의 사용자", "My bot's users"),
    "relay or session token": ("릴레이 토큰이나 세션 토큰", "Relay token or session token"),
    "where is the token": (
        "릴레이 토큰은 계정을 만들 때 한 번 보입니다. 세션 토큰은 봇의 플러그인이 보관합니다.",
        "A relay token was shown once when the account was made. A session token is kept by the bot's plugin.",
    ),
    "token unknown": ("알 수 없거나 더는 쓸 수 없는 토큰입니다.", "This token is not known, or no longer good."),
    "account is off": (
        "이 계정은 꺼져 있습니다. 운영자에게 문의해 주세요.",
        "This account is disabled. Ask the operator.",
    ),
    "bot is online": ("봇이 접속해 있습니다.", "Your bot is online."),
    "bot is away": (
        "지금 스트림으로 접속한 봇이 없습니다. 메시지는 기한까지 기다립니다.",
        "No bot is connected by a stream now. Messages wait as long as they live.",
    ),
    "connect somebody": ("사람 연결하기", "Connect somebody"),
    "type it": (
        "카카오톡 채널 대화방에 이대로 보내면 연결됩니다.",
        "Send exactly this in the channel's chat on KakaoTalk to be connected.",
    ),
    "codes enough": (
        "한 번에 살아 있을 수 있는 코드가 모두 나갔습니다.",
        "As many codes are out as may live at once.",
    ),
    "about rotating": (
        "새 토큰을 받으면 지금 토큰과 그 토큰으로 연 화면은 바로 끊깁니다.",
        "A new token ends the one you have, and every page that was opened with it.",
    ),
    "session tokens stay": (
        "세션 토큰으로 들어와 있습니다. 릴레이 토큰이 필요하면 운영자에게 청하세요.",
        "You are in with a session token. If you need a relay token, ask the operator.",
    ),
    "sure rotate own": (
        "릴레이 토큰을 바꿉니다. 지금 토큰은 바로 끊기고, 쓰지 않은 연결 코드 {}개도 사라집니다.",
        "Rotate the relay token: the one you have dies at once, with {} unused pairing codes.",
    ),
    "waits for pairing": ("연결을 기다리고 있습니다", "Waiting to be paired"),
    "goes on by itself": (
        "연결되면 이 화면이 스스로 바뀝니다.",
        "This page goes on by itself when somebody is connected.",
    ),
    "waits no longer": (
        "이 코드는 끝났습니다. 봇을 다시 시작해 새 코드를 받으세요.",
        "This code is over. Restart the bot for a new one.",
    ),
    "answered at": ("답한 때", "Answered"),
}
