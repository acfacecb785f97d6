"""Run the steps of deploy/docker/Dockerfile in a clean folder, without Docker: `make image-steps`.

Runs RUN and COPY of the build stage with /opt/pabal and the working directory inside the folder. Then starts the
command of the image with its environment and waits until its health check passes.
"""  # noqa: INP001 run as a module, not installed

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
PORT = "8700"
HEALTH_CHECKS = 30
"""A start period of 60 seconds, and a check every two."""


def read_instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile as name and arguments, without comments and line breaks."""
    lines = "\n".join(line for line in text.splitlines() if line and not line.startswith("#"))
    for line in re.sub(r"\\\n\s*", "", lines).splitlines():
        name, _, arguments = line.partition(" ")
        yield name, arguments.strip()


def split_stages(text: str) -> list[list[tuple[str, str]]]:
    stages: list[list[tuple[str, str]]] = []
    for name, arguments in read_instructions(text):
        if name == "FROM":
            stages.append([])
        else:
            stages[-1].append((name, arguments))
    return stages


def main() -> None:
    build, image = split_stages(DOCKERFILE.read_text())
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pabal-image-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # a hub started by root runs its database as another user
        run_build(build, folder)
        print(f"built in {time.monotonic() - started:.0f} s")  # noqa: T201
        run_image(image, folder)
        print(f"healthy after {time.monotonic() - started:.0f} s")  # noqa: T201


def run_build(steps: list[tuple[str, str]], folder: Path) -> None:
    """Run the build stage. Any instruction that this tool does not know is an error."""
    environment = clean_environment(folder)
    work = folder
    for instruction, arguments in steps:
        print(instruction, arguments, flush=True)  # noqa: T201
        match instruction:
            case "WORKDIR":
                work = folder / arguments.lstrip("/")
                work.mkdir(parents=True)
            case "COPY":
                *sources, target = arguments.split()
                copy_files(sources, work / target)
            case "RUN":
                command = arguments.replace("/opt/pabal", str(folder / "opt" / "pabal"))
                subprocess.run(["/bin/sh", "-ec", command], cwd=work, env=environment, check=True)  # noqa: S603
            case _:
                sys.exit(f"unknown instruction: {instruction}")


def copy_files(sources: list[str], target: Path) -> None:
    for source in sources:
        path = ROOT / source
        if path.is_dir():
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def run_image(steps: list[tuple[str, str]], folder: Path) -> None:
    """Start the command of the image, and wait until the health check passes."""
    environment, check, command = clean_environment(folder), [], []
    for instruction, arguments in steps:
        if instruction == "ENV":
            environment |= dict(pair.split("=", 1) for pair in shlex.split(arguments))
        elif instruction == "HEALTHCHECK":
            check = json.loads(arguments[arguments.index("[") :])
        elif instruction == "CMD":
            command = json.loads(arguments)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    paths = os.pathsep.join([str(folder / "opt" / "pabal" / "bin"), os.environ["PATH"]])
    data = folder / "data"
    data.mkdir()
    environment |= {"PATH": paths, "PABAL_DATA_DIR": str(data), "PABAL_PORT": port}
    if os.geteuid() == 0:
        environment["PABAL_PG_USER"] = "nobody"  # a hub of root would add a user to this machine
    with subprocess.Popen(command, cwd=data, env=environment) as hub:  # noqa: S603
        try:
            for _ in range(HEALTH_CHECKS):
                checked = [part.replace(PORT, port) for part in check]
                if subprocess.run(checked, env=environment, capture_output=True, check=False).returncode == 0:  # noqa: S603
                    return
                time.sleep(2)
            sys.exit("the health check did not pass")
        finally:
            hub.terminate()


def clean_environment(folder: Path) -> dict[str, str]:
    """Only what a build needs: no variable of this shell, no Python path, the settings of pip."""
    kept = {name: value for name, value in os.environ.items() if name in {"LANG", "SSL_CERT_FILE"} or "PIP_" in name}
    return kept | {"PATH": os.pathsep.join([str(python_folder(folder)), "/usr/bin", "/bin"]), "HOME": str(folder)}


def python_folder(folder: Path) -> Path:
    """A folder in which `python` is the interpreter of this tool, outside its virtual environment."""
    links = folder / "python"
    links.mkdir(exist_ok=True)
    if not (links / "python").exists():
        (links / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    return links


if __name__ == "__main__":
    main()
