"""The examples below every `--help`."""


def examples(*commands: str) -> str:
    """Format example calls, given without the leading `pabal`, as the end of a help text."""
    return "\n".join(["Examples:", *(f"  $ pabal {command}" for command in commands)])
