"""Virtual environments with wheels of this repository and only the packages that they depend on."""

import re
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients" / "python"


def build_wheel(project: Path, folder: Path) -> Path:
    """Build a project as `pip wheel` does, with the installed build backend and without an index."""
    folder.mkdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=project)
    [wheel] = folder.glob("*.whl")
    return wheel


def create_environment(folder: Path, wheels: list[Path], dependencies: set[str]) -> Path:
    """Install wheels, and link the installed packages that they depend on; return the folder of its programs."""
    venv.create(folder, symlinks=True)
    programs = folder / "bin"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(programs / "python")]
    run(*pip, "install", "-q", "--no-index", "--no-deps", "--no-compile", *map(str, wheels), cwd=folder)
    [packages] = folder.glob("lib/python3*/site-packages")
    for name in dependencies:
        link_distribution(distribution(name), packages)
    return programs


def dependency_names(name: str, *, without: frozenset[str] = frozenset()) -> set[str]:
    """The names of all packages that a package needs here, directly or not."""
    names: set[str] = set()
    pending = [name]
    while pending:
        for text in distribution(pending.pop()).requires or ():
            requirement = Requirement(text)
            needed = re.sub(r"[-_.]+", "-", requirement.name).lower()
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if applies and needed not in names | without:
                names.add(needed)
                pending.append(needed)
    return names


def link_distribution(installed: Distribution, packages: Path) -> None:
    """Link the top-level files and folders of an installed package."""
    tops = {Path(file).parts[0] for file in installed.files or () if ".." not in Path(file).parts}
    for top in tops - {"__pycache__"}:
        if not (packages / top).exists():
            (packages / top).symlink_to(Path(str(installed.locate_file(top))))


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
