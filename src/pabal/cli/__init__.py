"""The `pabal` command: one module per noun."""

import gc
import sys

GC_THRESHOLDS = (10_000, 20, 20)
"""Requests under way are found alive again and again; the default of 700 objects costs 8 % of a webhook's time."""


def main() -> None:
    """Run the command of this process and exit with its code.

    `pabal version` answers without the parser, which takes longer to import than the answer takes to print.
    Imported modules are never freed, so the collector is off while they load and skips them afterwards.
    """
    if sys.argv[1:] in (["version"], ["--version"], ["-V"]):
        from pabal.cli.version import version_text

        sys.stdout.write(version_text() + "\n")
        return
    gc.disable()
    from pabal.cli.app import import_command, run_command

    args = sys.argv[1:]
    import_command(args)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    sys.exit(run_command(args))
