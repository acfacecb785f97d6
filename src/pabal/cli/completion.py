"""`pabal --install-completion`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from pabal.cli.output import print_text
from pabal.core.errors import SetupError


def install_completion(
    *,
    shell: Annotated[
        Literal["bash", "zsh", "fish"] | None, Parameter(help="The shell. Default: the one this command runs in.")
    ] = None,
    output: Annotated[
        Path | None, Parameter(help="Write the script to this file. Default: the shell's own place.")
    ] = None,
) -> None:
    """Install completion for your shell. Adds the script to the shell's startup file unless --output is given."""
    from cyclopts.completion.detect import ShellDetectionError

    from pabal.cli.app import app

    try:
        path = app.install_completion(shell=shell, output=output, add_to_startup=output is None)
    except ShellDetectionError:
        raise SetupError("Cannot detect the shell. Name it with --shell bash, zsh or fish") from None
    print_text(f"Completion script written to {path}. Restart your shell to use it.")
