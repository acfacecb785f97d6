"""Which chat command a text is, if it is one."""

from dataclasses import dataclass
from enum import StrEnum


class ChatCommandName(StrEnum):
    PAIR = "pair"
    UNPAIR = "unpair"
    STATUS = "status"
    HELP = "help"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """What a person asks of the hub itself; `rest` is what came after the word, which only /pair takes."""

    name: ChatCommandName
    argument: str = ""


def parse_chat_command(text: str, prefix: str) -> ChatCommand | None:
    """The command a text is; None for everything else, which is the bot's to read."""
    said = text.strip()
    if said[: len(prefix)].casefold() != prefix.casefold():
        return None
    asked = said[len(prefix) :]
    word, *rest = asked.split(None, 1) or [""]
    verb = next((each for each in ChatCommandName if each == word.casefold()), None)
    if verb is None or asked[0].isspace() or (rest and verb is not ChatCommandName.PAIR):
        return None
    return ChatCommand(verb, *rest)
