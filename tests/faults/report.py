"""Run all fault scenarios and write their table to docs/reliability.md: `make faults`."""

import asyncio
import re
import sys
from pathlib import Path

from faults.scenarios import SCENARIOS, Scenario, run_scenario
from pabal.core.log import configure_logging

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
HEAD = (
    "| fault | accepted | lost | double POSTs | order breaks | stuck | longest gap | 90 % of the pace after |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
)


MAX_RECOVERY = 10.0
"""Seconds after the end of a fault within which the hub accepts 90 % of its earlier pace."""


async def run_row(scenario: Scenario) -> tuple[str, list[str]]:
    """The row of the table, and what is wrong."""
    verdict, recovery = await run_scenario(scenario)
    faults = [f"{name}: {rows[:5]}" for name, rows in verdict.faults().items() if name not in scenario.expected]
    if recovery > MAX_RECOVERY:
        faults.append(f"90 % of the pace after {recovery:.1f} s, limit {MAX_RECOVERY:g} s")
    counts = [len(verdict.lost), len(verdict.repeated_posts), len(verdict.order_breaks), len(verdict.stuck)]
    cells = [
        scenario.name,
        f"{sum(verdict.accepted.values()):,}",
        *map(str, counts),
        f"{verdict.longest_gap:.1f} s",
        f"{recovery:.1f} s",
    ]
    return f"| {' | '.join(cells)} |", faults


async def main(names: list[str]) -> int:
    configure_logging("critical", "json")
    chosen = [scenario for scenario in SCENARIOS if not names or any(name in scenario.name for name in names)]
    rows: list[str] = []
    all_good = True
    for scenario in chosen:
        if missing := scenario.missing():
            sys.stdout.write(f"NOT RUN, because it needs {missing}: {scenario.name}\n")
            rows.append(f"| {scenario.name} | not run: needs {missing} |{' |' * 6}")
            continue
        row, faults = await run_row(scenario)
        all_good &= not faults
        rows.append(row)
        sys.stdout.write("\n".join([row, *faults, ""]))
        sys.stdout.flush()
    if not names:
        table = "\n".join([BEGIN, *HEAD, *rows, END])
        text = re.sub(f"{BEGIN}.*{END}", lambda _: table, DOCUMENT.read_text("utf-8"), flags=re.DOTALL)
        DOCUMENT.write_text(text, "utf-8")
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
