"""The files in deploy/ are valid, agree with each other, and name settings and metrics that exist."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from pabal.hub import Hub
from pabal.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
SETTINGS = {f"PABAL_{name}".upper() for name in Settings.model_fields}
ELSEWHERE = {"PABAL_DB_PASSWORD"}
"""Variables that are not settings of the hub: the compose file builds a URL from this one."""
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SOCKETS = sorted((DEPLOY / "systemd").glob("*.socket"))
METRIC = re.compile(r"\b(?:pabal|relay|http_server)_[a-z_]+\b")
LABELS = {"http_route", "http_request_method", "http_response_status_code"}
WITHOUT_VALUE = {
    "pabal_chore_success_age_seconds": '"pabal.chore.success_age"',
    "pabal_events_unhandled": '"pabal.events.unhandled"',
    "relay_message_expired_total": '"message.expired"',
}
SUFFIX = re.compile(r"_(?:bucket|count|sum)\Z")


def run(*command: object, **options: Any) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("folder", ["docker", "ha"])
def test_the_dockerfile_passes_its_linter(folder: str) -> None:
    run(BIN / "hadolint", DEPLOY / folder / "Dockerfile")


def test_the_image_contains_all_that_it_copies() -> None:
    """What the Dockerfile copies exists and is not ignored."""
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored


@pytest.mark.parametrize("path", sorted(p for p in DEPLOY.rglob("*") if p.is_file()), ids=lambda p: p.name)
def test_every_setting_exists(path: Path) -> None:
    assert set(re.findall(r"\bPABAL_[A-Z_]+\b", path.read_text())) <= SETTINGS | ELSEWHERE


def test_the_compose_file_names_its_variables() -> None:
    """Every variable of the compose file is in the example, so that copying and filling it in is enough."""
    compose = (DEPLOY / "docker" / "compose.yaml").read_text()
    example = (DEPLOY / "docker" / ".env.example").read_text()
    names = set(re.findall(r"\$\{(\w+)", compose))

    assert names == set(re.findall(r"^(\w+)=", example, re.MULTILINE))
    services = yaml.safe_load(compose)["services"]
    assert services["hub"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = str(volume).partition(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "docker" / source).is_file()


def test_the_cluster_names_its_variables() -> None:
    """What the compose file, HAProxy, Patroni and etcd take from the environment is in their examples."""
    folder = DEPLOY / "ha"
    compose = (folder / "compose.yaml").read_text()
    services = yaml.safe_load(compose)["services"]

    assert set(re.findall(r"\$\{(\w+)", compose)) == variables_of(folder / ".env.example")
    assert set(re.findall(r"\$\{(\w+)\}", (folder / "haproxy.cfg").read_text())) == variables_of(folder / "haproxy.env")
    assert set(services["haproxy"]["environment"]) == variables_of(folder / "haproxy.env")
    assert set(services["etcd1"]["environment"]) == variables_of(folder / "etcd.env")
    assert set(services["db1"]["environment"]) == variables_of(folder / "patroni.env")


def variables_of(path: Path) -> set[str]:
    return set(re.findall(r"^(\w+)=", path.read_text(), re.MULTILINE))


def test_patroni_accepts_its_times() -> None:
    """Patroni corrects other values silently, and the fail-over would take longer than documented."""
    dcs = yaml.safe_load((DEPLOY / "ha" / "patroni.yaml").read_text())["bootstrap"]["dcs"]

    assert dcs["ttl"] >= max(20, dcs["loop_wait"] + 2 * dcs["retry_timeout"])
    assert dcs["retry_timeout"] >= 3


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd")
def test_the_units_are_valid(tmp_path: Path) -> None:
    for unit in UNITS:
        text = unit.read_text().replace("/opt/pabal/bin/pabal", sys.executable)
        (tmp_path / unit.name).write_text(text)

    for unit in SOCKETS:
        (tmp_path / unit.name).write_text(unit.read_text())

    output = run("systemd-analyze", "verify", *(tmp_path / unit.name for unit in (*UNITS, *SOCKETS)))

    assert not [line for line in output.splitlines() if "pabal" in line]


def test_the_migrations_run_at_each_start_of_the_hub() -> None:
    """A oneshot unit that stays active after its end is not run again by a restart of those that require it."""
    units = {unit.name: unit.read_text() for unit in UNITS}

    assert "RemainAfterExit" not in units["pabal-migrate.service"]
    for name in ("pabal-serve.service", "pabal-work.service"):
        assert re.search(r"^Requires=pabal-migrate\.service$", units[name], re.MULTILINE)
        assert re.search(r"^After=.*pabal-migrate\.service", units[name], re.MULTILINE)


def test_a_hub_that_is_stopped_is_not_ready_before_it_ends() -> None:
    unit = (DEPLOY / "systemd" / "pabal-serve.service").read_text()
    environments: list[dict[str, Any]] = [
        yaml.safe_load((DEPLOY / "ha" / "compose.yaml").read_text())["x-hub"]["environment"],
        yaml.safe_load((DEPLOY / "helm" / "pabal" / "values.yaml").read_text())["settings"],
        dict(re.findall(r"^Environment=(\w+)=(.*)$", unit, re.MULTILINE)),
    ]

    for variables in environments:
        settings = Settings(_env_file=None, lame_duck=variables["PABAL_LAME_DUCK"])  # pyright: ignore[reportCallIssue]
        assert settings.lame_duck > timedelta()


def test_the_units_run_commands_that_exist() -> None:
    for unit in UNITS:
        [command] = re.findall(r"^ExecStart=/opt/pabal/bin/pabal (.+)$", unit.read_text(), re.MULTILINE)
        assert "Usage: pabal" in run(BIN / "pabal", *command.split(), "--help")


@pytest.mark.parametrize("options", [(), ("--set", "ingress.enabled=true", "--set", "ingress.tlsSecret=tls")])
def test_the_chart_renders_valid_objects(tmp_path: Path, options: tuple[str, ...]) -> None:
    chart = DEPLOY / "helm" / "pabal"
    run(BIN / "helm", "lint", "--strict", chart)
    objects = tmp_path / "objects.yaml"
    objects.write_text(run(BIN / "helm", "template", "hub", chart, "--set", "trustedProxies=10.0.0.0/8", *options))

    output = run(BIN / "kubernetes-validate", "--strict", objects)

    kinds = re.findall(r"passed for resource (\w+)/", output)
    assert sorted(kinds) == sorted(["deployment", "deployment", "job", "service", *(["ingress"] if options else [])])


def test_every_process_has_probes_and_metrics_on_its_port() -> None:
    """Of `serve` and of `work`, in the chart and in the units: the counters of one are not in the other."""
    objects = yaml.safe_load_all(run(BIN / "helm", "template", "hub", DEPLOY / "helm" / "pabal"))
    containers = [
        container
        for item in objects
        if item["kind"] == "Deployment"
        for container in item["spec"]["template"]["spec"]["containers"]
    ]

    assert sorted(container["name"] for container in containers) == ["serve", "work"]
    for container in containers:
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        settings = {variable["name"]: variable["value"] for variable in container["env"]}
        for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            request = container[probe]["httpGet"]
            assert request["path"] == path
            assert ports[request["port"]] == (int(settings["PABAL_WORK_PORT"]) if container["name"] == "work" else 8700)
        assert settings["PABAL_WORK_HOST"] == "0.0.0.0"
    assert re.search(
        r"^Environment=.*\bPABAL_WORK_PORT=\d+", (DEPLOY / "systemd/pabal-work.service").read_text(), re.MULTILINE
    )


def guide_lines(section: str) -> list[str]:
    """The commands of a section of docs/deployment.md, without comments."""
    guide = (ROOT / "docs" / "deployment.md").read_text()
    [block] = re.findall(rf"^## {section}\n+```\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    return [line.partition("    #")[0] for line in block.splitlines()]


def test_the_guide_installs_what_the_image_installs() -> None:
    """Its pip commands are those of the Dockerfile, whose steps `make image-steps` runs; the files it copies exist."""
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text().replace("--no-cache-dir ", "")
    commands = guide_lines("systemd")

    installs = [line for line in commands if "pip install" in line]
    assert len(installs) == 2
    for line in installs:
        assert f"RUN {line}\n" in dockerfile
    for line in [*commands, *guide_lines("Docker")]:
        for path in re.findall(r"\bdeploy/\S+", line):
            assert (ROOT / path).exists() or path == "deploy/docker/.env"


def test_the_chart_accepts_the_guides_values() -> None:
    [install] = [line for line in guide_lines("Kubernetes") if line.startswith("helm install ")]
    _, _, name, chart, *options = install.split()

    objects = run(BIN / "helm", "template", name, ROOT / chart, *options)

    assert "https://hub.example.org" in objects
    assert "10.0.0.0/8" in objects


@pytest.mark.parametrize("folder", ["docker", "ha"])
def test_docker_compose_accepts_the_compose_file(folder: str) -> None:
    compose = find_compose()
    file, variables = DEPLOY / folder / "compose.yaml", DEPLOY / folder / ".env.example"

    run(*compose, "--file", file, "--env-file", variables, "config", "--quiet")


def find_compose() -> list[str]:
    """Docker Compose, as a plugin of Docker or on its own; without it the test is skipped."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0
        ):
            return command
    pytest.skip("*** COMPOSE FILES NOT CHECKED: Docker Compose is not installed ***")


def test_promtool_accepts_the_alert_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("*** ALERT RULES NOT CHECKED: promtool is not installed (it comes with Prometheus) ***")

    run(promtool, "check", "rules", "--lint-fatal", DEPLOY / "monitoring" / "alerts.yaml")


def alert_expressions() -> Iterator[str]:
    for group in yaml.safe_load((DEPLOY / "monitoring" / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            assert {"summary", "action"} <= rule["annotations"].keys(), rule["alert"]
            yield rule["expr"]


def dashboard_expressions() -> Iterator[str]:
    for panel in json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])


@pytest.mark.anyio
async def test_the_alert_for_late_chores_knows_those_that_run_seldom(hub: Hub) -> None:
    [expression] = [expression for expression in alert_expressions() if "chore_success" in expression]
    [seldom] = re.findall(r'chore!~"(.+?)"', expression)
    async with hub.autocommit() as tx:
        runs = await hub.chores.list_runs(tx)

    assert [
        run.name for run in runs if run.interval > timedelta(minutes=1) and not re.fullmatch(seldom, run.name)
    ] == []


def test_gauges_are_not_added_up_and_counters_are() -> None:
    """A gauge about rows has the same value in every process; a counter has only what its process did."""
    for expression in [*alert_expressions(), *dashboard_expressions()]:
        for aggregate, names in re.findall(r"\b(sum|max|min|avg)\b[^a-z(]*(?:by \([\w, ]+\) *)?\(([^)]*)", expression):
            if re.search(r"_(?:total|count|bucket)\b", names):
                assert aggregate == "sum", expression
            elif re.search(r"\bpabal_(?:lane|events|chore|audit)_", names):
                assert aggregate == "max", expression


@pytest.mark.anyio
async def test_every_metric_exists(web: httpx2.AsyncClient) -> None:
    """An instrument without a value is not in the output; its name must stand in the source."""
    expressions = " ".join([*alert_expressions(), *dashboard_expressions()])
    used = {SUFFIX.sub("", name) for name in METRIC.findall(expressions)} - LABELS

    await web.get("/healthz")
    served = set(re.findall(r"^# TYPE (\w+) ", (await web.get("/metrics")).text, re.MULTILINE))

    source = "".join(path.read_text() for path in (ROOT / "src" / "pabal").rglob("*.py"))
    assert len(used) > 5
    for name in used - served:
        assert WITHOUT_VALUE[name] in source
