"""Run the faults of a cluster on three machines and write their table to the docs: `make faults-ha`. Needs root."""

import asyncio
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from faults.ha.cells import check_cells
from faults.ha.cluster import ROOT, TTL, open_cluster
from faults.ha.scenarios import SCENARIOS, ClusterScenario, TrialResult, run_cluster_scenario
from pabal.core.log import configure_logging

DOCUMENTS = (ROOT / "docs" / "scaling.md", ROOT / "docs" / "reliability.md")
BEGIN, END = "<!-- faults-ha: begin -->", "<!-- faults-ha: end -->"
COLUMNS = (
    *("fault", "accepted", "lost", "double POSTs", "stuck", "order breaks"),
    *("new primary after", "all lanes accept after", "longest gap when it came back"),
)
HEAD = (f"| {' | '.join(COLUMNS)} |", f"|---|{'---:|' * (len(COLUMNS) - 1)}")


def format_row(scenario: ClusterScenario, result: TrialResult) -> str:
    verdict, recovered_after = result.verdict, max(result.recovered_after.values())
    counts = [len(rows) for rows in (verdict.lost, verdict.repeated_posts, verdict.stuck, verdict.order_breaks)]
    cells = [
        scenario.name,
        f"{sum(verdict.accepted.values()):,}",
        *map(str, counts),
        "" if result.failed_over_after is None else f"{result.failed_over_after:.1f} s",
        f"{recovered_after:.1f} s" if recovered_after else "no gap over 1 s",
        f"{result.healing_gap:.1f} s",
    ]
    return f"| {' | '.join(cells)} |"


def describe_recovery(result: TrialResult) -> str:
    return ", ".join(f"{lane} after {seconds:.1f} s" for lane, seconds in result.recovered_after.items())


def make_folder() -> Path:
    """A folder that the user of the servers can enter."""
    folder = Path(tempfile.mkdtemp(prefix="pabal-ha-"))
    folder.chmod(0o755)
    return folder


async def main(names: list[str]) -> int:
    if os.geteuid() != 0:
        sys.stderr.write("needs root, for network namespaces\n")
        return 2
    configure_logging("critical", "json")
    chosen = [scenario for scenario in SCENARIOS if not names or any(name in scenario.name for name in names)]
    if not names or "cells" in names:
        await check_cells()
        sys.stdout.write("cells: events cross once, in order, in both directions\n")
    return await run_scenarios(chosen, is_complete=not names) if chosen else 0


async def run_scenarios(chosen: list[ClusterScenario], *, is_complete: bool) -> int:
    folder = make_folder()
    rows: list[str] = []
    all_good = True
    sys.stdout.write(f"ttl {TTL} s; logs in {folder}\n")
    async with open_cluster(folder) as cluster:
        for number, scenario in enumerate(chosen, 1):
            result = await run_cluster_scenario(cluster, scenario, folder, f"run_{number}")
            rows.append(format_row(scenario, result))
            sys.stdout.write(f"{rows[-1]}\n  {describe_recovery(result)}\n")
            for text in result.faults(scenario):
                all_good = False
                sys.stdout.write(f"  {text}\n")
            sys.stdout.flush()
    if is_complete:
        table = "\n".join([BEGIN, *HEAD, *rows, END])
        for path in DOCUMENTS:
            text = re.sub(f"{BEGIN}.*{END}", lambda _: table, path.read_text("utf-8"), flags=re.DOTALL)
            path.write_text(text, "utf-8")
    if all_good:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
