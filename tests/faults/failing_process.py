"""A process that runs one promised path and exits at a chosen suspension without any clean-up."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from faults.failpoints import driving_tasks, open_victim
from faults.paths import PATHS
from pabal.core.log import configure_logging
from pabal.hub import DatabaseUrls
from pabal.settings import Settings

EXIT_CODE = 9


async def main(task: dict[str, Any]) -> None:
    configure_logging("error", "json")  # to standard error
    [path] = [path for path in PATHS if path.name == task["path"]]
    settings = Settings(
        _env_file=None,  # pyright: ignore[reportCallIssue]
        data_dir=Path(task["folder"]),
        callback_allow=["http://127.0.0.1"],
        webhook_per_conversation=0,
        webhook_per_channel=0,
    )
    with driving_tasks():
        async with open_victim(settings, DatabaseUrls(*task["urls"])) as (victim, hub):
            victim.stop_at = task["stop_at"]
            victim.on_stop = lambda: os._exit(EXIT_CODE)
            await victim.run(path.act(hub, task["subject"]))
            sys.stdout.write(f"ended after {victim.suspensions} suspensions")


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
