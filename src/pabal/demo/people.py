"""The people of the play: who they are on Discord, and what they want to be told."""

from dataclasses import dataclass

from pabal.notifications.preferences import PreferencesUpdate


@dataclass(frozen=True, slots=True)
class DemoPerson:
    """Somebody who buys things and is told about it."""

    name: str
    discord_id: str
    email: str
    preferences: PreferencesUpdate


MINA = DemoPerson("민아", "830000000000000001", "mina@example.org", PreferencesUpdate(locale="ko"))
JUN = DemoPerson("Jun", "830000000000000002", "jun@example.org", PreferencesUpdate(locale="en", dm_enabled=False))
SORA = DemoPerson(
    "소라", "830000000000000003", "sora@example.org", PreferencesUpdate(locale="ko", payment_notifications=False)
)
HARU = DemoPerson("Haru", "830000000000000004", "haru@example.org", PreferencesUpdate(locale="en"))
"""Takes no direct messages from bots: Discord says so, not they."""

DEMO_PEOPLE = (MINA, JUN, SORA, HARU)
OPERATORS_CHANNEL = "830000000000000009"
