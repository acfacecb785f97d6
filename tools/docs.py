"""Write what the documents say about doors and settings from the code itself: `make docs`."""  # noqa: INP001 run as a module, installed nowhere

import re
from collections.abc import Iterator
from pathlib import Path

from pabal.api import doors, reference
from pabal.cli.settings import shown
from pabal.settings import Settings, variable

DOCS = Path(__file__).parent.parent / "docs"
SECTION = re.compile(r"(?<=<!-- settings -->\n).*(?=<!-- /settings -->)", re.DOTALL)
EMPTY = "# Running Pabal\n\n<!-- settings -->\n<!-- /settings -->\n"


def written() -> Iterator[tuple[Path, str]]:
    """Every file this writes, and what belongs into it now."""
    yield DOCS / "api.md", reference.markdown(doors.ALL)
    running = DOCS / "running.md"
    around = running.read_text(encoding="utf-8") if running.exists() else EMPTY
    yield running, SECTION.sub(lambda _: settings_table(), around)


def settings_table() -> str:
    rows = ["| variable | default | |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `{variable(name)}` | {default(name)} | {field.description} |")
    return "\n".join(rows) + "\n"


def default(name: str) -> str:
    field = Settings.model_fields[name]
    value = field.default if field.default_factory is None else None  # a made default differs from machine to machine
    return "" if value is None else f"`{str(shown(value)).lower()}`"


def main() -> None:
    for path, text in written():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
