"""The documents agree with the code."""

import importlib.util
import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from pabal.api import routes
from pabal.cli.app import app
from pabal.settings import Settings, variable_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tools_docs", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)  # as `python -m tools.docs` does
        spec.loader.exec_module(module)
    return module


def test_generated_documents_are_up_to_date(docs: ModuleType) -> None:
    stale = [path.name for path, text in docs.generated_documents() if not path.exists() or path.read_text() != text]

    assert stale == [], "run `make docs`"


def test_every_route_and_every_setting_is_documented() -> None:
    api, running = (ROOT / "docs" / "api.md").read_text(), (ROOT / "docs" / "running.md").read_text()

    assert [route.path for route in routes.ROUTES if f"`{route.method} {route.path}`" not in api] == []
    assert [name for name in Settings.model_fields if f"`{variable_name(name)}`" not in running] == []


def test_every_route_and_every_setting_has_a_description() -> None:
    assert [route.path for route in routes.ROUTES if not route.description] == []
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_every_file_that_a_document_names_exists(name: str) -> None:
    paths = re.findall(r"`((?:src|tests|docs|bench|tools)/[\w./]+)`", (ROOT / name).read_text())

    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_documents_have_the_layers_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [layer.split(" | ") for layer in contracts[0]["layers"]]
    picture = (ROOT / "docs" / "architecture.md").read_text().split("```")[1]
    decisions = (ROOT / "docs" / "decisions.md").read_text()
    [listed] = re.findall(r"Dependencies point down: (.*?)\. import-linter", decisions, re.DOTALL)

    rank = {name: number for number, layer in enumerate(layers) for name in layer}
    lines = [
        re.findall(r"(?<= )(\w+)(?:/|\.py)(?= |$)", line) for line in picture.splitlines() if re.match(r" \w", line)
    ]
    ranks = [[rank[name] for name in names] for names in lines]

    assert {name for names in lines for name in names} == rank.keys()
    assert all(max(above) < min(below) for above, below in pairwise(ranks))
    assert [layer.split(" | ") for layer in " ".join(listed.split()).split(" → ")] == layers


def test_every_test_has_a_time_limit() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    unlimited = [
        path.name for path in (ROOT / "tests").rglob("*.py") if re.search(r"mark\.timeout\(0", path.read_text())
    ]

    assert 0 < options["timeout"] <= 180
    assert unlimited == []


def test_every_command_in_the_operations_guide_parses() -> None:
    blocks = re.findall(r"^```\n(.*?)^```", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line) for block in blocks for line in block.splitlines() if line.startswith("pabal ")]

    assert len(commands) >= 5
    for _program, *arguments in commands:
        app.parse_args(arguments, exit_on_error=False, print_error=False)


def test_the_architecture_names_the_files_of_every_flow() -> None:
    flows = (ROOT / "docs" / "architecture.md").read_text().split("\n## ")[2:]

    assert [flow.partition(":")[0] for flow in flows] == ["Relay", "Pairing", "Events", "Notifications", "Tokens"]
    assert [flow for flow in flows if len(re.findall(r"`src/pabal/[\w./]+`", flow)) < 7] == []
