"""Apply each mutant to a copy of the source and run the tests that must notice it: `make mutate`.

`python -m tools.mutate lane.sql claim` runs the mutants whose path and query contain the words.
"""  # noqa: INP001 run as a module, not installed

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

from tools.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
TIME_LIMIT = 900


def apply_mutant(mutant: Mutant, text: str) -> str:
    """Raises ValueError if the text to replace is not there."""
    begin = re.search(rf"-- name: {mutant.query}\n|def {mutant.query}\(", text)
    start = text.index(mutant.old, begin.end()) if begin else -1
    if start < 0:
        raise ValueError(mutant.query)
    return text[:start] + mutant.new + text[start + len(mutant.old) :]


def is_noticed(mutant: Mutant) -> bool:
    """Whether a test fails on the mutated source."""
    with tempfile.TemporaryDirectory(prefix="pabal-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        Path(folder).chmod(0o755)
        path = source / "pabal" / mutant.path
        path.write_text(apply_mutant(mutant, path.read_text("utf-8")), "utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests]
        environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            run = subprocess.run(  # noqa: S603 our own tests
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=TIME_LIMIT
            )
        except subprocess.TimeoutExpired:
            return True
        if run.returncode not in {0, 1}:
            raise RuntimeError(run.stdout + run.stderr)
        return run.returncode == 1


def main(words: list[str]) -> int:
    survivors, started = 0, monotonic()
    chosen = [mutant for mutant in MUTANTS if all(word in f"{mutant.path} {mutant.query}" for word in words)]
    for number, mutant in enumerate(chosen, 1):
        label = f"{mutant.path} {mutant.query}: {' '.join(mutant.old.split())} -> {' '.join(mutant.new.split())}"
        try:
            noticed = is_noticed(mutant)
        except ValueError:
            sys.stdout.write(f"does not apply: {label}\n")
            survivors += 1
            continue
        survivors += not noticed
        progress = f"{number}/{len(chosen)}, {(monotonic() - started) / 60:.1f} min"
        sys.stdout.write(f"{'noticed' if noticed else 'SURVIVED'} ({progress}): {label}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{survivors} of {len(chosen)} not noticed, {(monotonic() - started) / 60:.0f} minutes\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
