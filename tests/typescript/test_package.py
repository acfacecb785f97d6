"""The npm package: its types, its build, and its README."""

import re
import shutil
from pathlib import Path

import pytest

from support.node import CLIENT, compiler_program, run_node

pytestmark = pytest.mark.anyio


async def compile_types(*arguments: str | Path) -> tuple[int, list[str]]:
    async with run_node(compiler_program(), *arguments) as process:
        return await process.end()


async def test_the_source_and_the_examples_have_no_type_errors_and_wrong_calls_have() -> None:
    assert await compile_types("-p", CLIENT / "tsconfig.json") == (0, [])


async def test_the_built_package_is_imported_by_its_name(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "pabal-client"
    package.mkdir(parents=True)
    shutil.copy(CLIENT / "package.json", package)
    assert await compile_types("-p", CLIENT / "tsconfig.build.json", "--outDir", package / "dist") == (0, [])
    program = tmp_path / "program.mjs"
    program.write_text('import * as pabal from "pabal-client";\nconsole.log(Object.keys(pabal).join(" "));\n')
    async with run_node(program) as process:
        code, [names] = await process.end()

    assert code == 0
    assert {"Client", "RelayBot", "Toasts", "verifyWebhook", "Retry", "ApiError"} <= {*names.split()}
    assert (package / "dist" / "index.d.ts").exists()
    assert not [path for path in (package / "dist").glob("*.js") if '.ts"' in path.read_text()]


def test_the_package_has_the_license_of_the_repository() -> None:
    assert (CLIENT / "LICENSE").read_text() == (CLIENT.parents[1] / "LICENSE").read_text()


def test_every_example_of_the_readme_is_a_program() -> None:
    examples = {path.name: path.read_text() for path in (CLIENT / "examples").glob("*.ts")}
    blocks = re.findall(r"```ts\n(.*?)```", (CLIENT / "README.md").read_text(), re.DOTALL)
    programs = {text.replace('"../src/index.ts"', '"pabal-client"') for text in examples.values()}

    assert len(blocks) == len(examples)
    assert {*blocks} == programs
