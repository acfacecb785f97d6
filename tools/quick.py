"""Run the tests of what changed: `make quick`.

Always runs the unit tests and `tests/house`. Adds the test folders of the packages that differ from a base commit: the
merge base with `main`, or HEAD on `main` itself. Slow and browser tests run only in `make test`.
"""  # noqa: INP001 run as a module, not installed

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEST_FOLDERS = {
    "doctor": ("tests/test_doctor.py",),
    "settings": ("tests/test_settings.py",),
    "queue": ("tests/queue", "tests/lanes"),
    "events": ("tests/events", "tests/lanes"),
    "relay": ("tests/relay",),
    "notifications": ("tests/notifications",),
    "trace": ("tests/events/test_trace.py", "tests/relay/test_trace.py", "tests/notifications/test_trace.py"),
    "web": ("tests/api", "tests/web", "tests/security"),
    "migrations": ("tests/db", "tests/schema"),
    "maintenance": ("tests/events/test_retention.py", "tests/relay/test_purges.py", "tests/relay/test_expiry.py"),
    "stats": ("tests/queue/test_stats.py", "tests/console/test_overview.py"),
    "status": ("tests/cli/test_status.py", "tests/console/test_issues.py"),
    "hub_workers": ("tests/queue/test_processes.py", "tests/flows"),
    "settings_display": ("tests/cli/test_commands.py",),
    "hub": ("tests/api/test_endpoints.py", "tests/api/test_health.py"),
}
"""The tests of a package or module; by default the folder of the same name."""
MAX_FOLDERS = 6
"""With more folders or files to test, run only the unit tests: a change this wide needs `make test`."""


def main() -> None:
    paths = changed_paths()
    folders = folders_to_test(paths)
    if len(folders) > MAX_FOLDERS:
        sys.stderr.write(f"{len(folders)} test folders and files are affected: run `make test` as well\n")
        folders = []
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    status = subprocess.run([*pytest, "-m", "unit and not slow and not browser", "tests"], cwd=ROOT, check=False)  # noqa: S603
    if status.returncode == 0 and folders:
        expression = "db and not slow and not browser"
        status = subprocess.run([*pytest, "-m", expression, *folders], cwd=ROOT, check=False)  # noqa: S603
    sys.exit(status.returncode)


def changed_paths() -> list[str]:
    """Files that differ from the base commit, committed or not."""
    head, main = git("rev-parse", "HEAD"), git("rev-parse", "--verify", "--quiet", "main")
    base = git("merge-base", "HEAD", "main") if main else head
    changed = git("diff", "--name-only", base or head).splitlines()
    return [*changed, *git("ls-files", "--others", "--exclude-standard").splitlines()]


def folders_to_test(paths: Iterable[str]) -> list[str]:
    """Map changed files to the tests that cover them."""
    folders: dict[str, None] = {}
    for path in paths:
        match Path(path).parts:
            case ("src", "pabal", "db", "migrations", *_):
                folders |= dict.fromkeys(TEST_FOLDERS["migrations"])
            case ("src", "pabal", name, *_):
                package = Path(name).stem
                folders |= dict.fromkeys(TEST_FOLDERS.get(package, (f"tests/{package}",)))
            case ("clients", "python", *_):
                folders["tests/client"] = None
            case ("clients", "typescript", *_):
                folders["tests/typescript"] = None
            case ("tests", "support" | "conftest.py" | "house", *_):
                continue
            case ("tests", _, file) if file.startswith("test_"):
                folders[path] = None
            case ("tests", folder, _):
                folders[f"tests/{folder}"] = None
            case _:
                continue
    existing = [folder for folder in folders if (ROOT / folder).exists()]
    return [folder for folder in existing if str(Path(folder).parent) not in existing]


def git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603


if __name__ == "__main__":
    main()
