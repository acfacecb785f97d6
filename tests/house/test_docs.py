"""What the documents say about doors and settings is what the code says."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from pabal.api import routes
from pabal.settings import Settings, variable_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tools_docs", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_documents_are_as_make_docs_would_write_them(docs: ModuleType) -> None:
    stale = [path.name for path, text in docs.written() if not path.exists() or path.read_text() != text]

    assert stale == [], "run `make docs`"


def test_every_door_and_every_setting_is_there() -> None:
    api, running = (ROOT / "docs" / "api.md").read_text(), (ROOT / "docs" / "running.md").read_text()

    assert [door.path for door in routes.ROUTES if f"`{door.method} {door.path}`" not in api] == []
    assert [name for name in Settings.model_fields if f"`{variable_name(name)}`" not in running] == []


def test_every_door_says_what_it_is_for() -> None:
    assert [door.path for door in routes.ROUTES if not door.description] == []
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
