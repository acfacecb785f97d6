"""Who somebody is on Kakao, in a list: enough to tell two of them apart, too little to know them by."""

ENDS = 4
"""Characters of a user's key that are shown, at its beginning and at its end."""
SHORT = 12
"""Up to here the ends would be most of it."""
CHANNEL = 24
"""As long as Kakao's are. What is longer somebody made up, and a list has no room for it."""


def veiled(key: str) -> str:
    """A conversation's key with the middle of the user's part left out. All of it is in the detail."""
    channel, _, user = key.partition(":")
    if len(channel) > CHANNEL:
        channel = f"{channel[: CHANNEL // 3]}…{channel[-CHANNEL // 3 :]}"
    ends = f"{user[:2]}…" if len(user) <= SHORT else f"{user[:ENDS]}…{user[-ENDS:]}"
    return f"{channel}:{ends}"
