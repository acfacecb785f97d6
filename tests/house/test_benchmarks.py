"""The benchmarks import, run, and have a place in the document for every table."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path.stem for path in (ROOT / "bench").glob("*.py") if path.stem != "__init__")


@pytest.fixture(autouse=True)
def bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_imports(name: str) -> None:
    assert importlib.import_module(f"bench.{name}")


@pytest.mark.parametrize(("name", "groups"), [("engine", "GROUPS"), ("events", "GROUPS"), ("paths", "PATHS")])
def test_every_group_has_marks_in_the_document(name: str, groups: str) -> None:
    document = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")

    for group in getattr(importlib.import_module(f"bench.{name}"), groups):
        assert f"<!-- {name} {group} -->" in document
        assert f"<!-- /{name} {group} -->" in document


@pytest.mark.slow
def test_the_smallest_group_of_the_engine_runs() -> None:
    command = (sys.executable, "-m", "bench.engine", "--quick", "--only", "lane")

    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert finished.returncode == 0, finished.stderr
    assert "| event lane, two loops |" in finished.stdout
