"""The people of the play: who they are on Discord, and what they want to be told."""

from dataclasses import dataclass

from pabal.notifications.preferences import Wish


@dataclass(frozen=True, slots=True)
class Player:
    """Somebody who buys things and is told about it."""

    name: str
    discord_id: str
    email: str
    wish: Wish


MINA = Player("민아", "830000000000000001", "mina@example.org", Wish(locale="ko"))
JUN = Player("Jun", "830000000000000002", "jun@example.org", Wish(locale="en", dm_enabled=False))
SORA = Player("소라", "830000000000000003", "sora@example.org", Wish(locale="ko", payment_notifications=False))
HARU = Player("Haru", "830000000000000004", "haru@example.org", Wish(locale="en"))
"""Takes no direct messages from bots: Discord says so, not they."""

EVERYBODY = (MINA, JUN, SORA, HARU)
OPERATORS_CHANNEL = "830000000000000009"
