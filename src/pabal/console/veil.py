"""Who somebody is on Kakao, in a list: enough to tell two of them apart, too little to know them by."""

KEY_END_CHARS = 4
"""Characters of a user's key that are shown, at its beginning and at its end."""
MAX_SHORT_KEY = 12
"""Up to here the ends would be most of it."""
MAX_CHANNEL_CHARS = 24
"""As long as Kakao's are. What is longer somebody made up, and a list has no room for it."""


def redact_user_key(conversation_key: str) -> str:
    """A conversation's key with the middle of the user's part left out. All of it is in the detail."""
    channel, _, user = conversation_key.partition(":")
    if len(channel) > MAX_CHANNEL_CHARS:
        channel = f"{channel[: MAX_CHANNEL_CHARS // 3]}…{channel[-MAX_CHANNEL_CHARS // 3 :]}"
    ends = f"{user[:2]}…" if len(user) <= MAX_SHORT_KEY else f"{user[:KEY_END_CHARS]}…{user[-KEY_END_CHARS:]}"
    return f"{channel}:{ends}"
