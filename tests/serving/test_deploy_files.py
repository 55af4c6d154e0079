"""What `deploy/` holds can be read, names flags and metrics that there are, and drains."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import httpx2
import pytest
import yaml
from fastapi import FastAPI

from octavo.cli.serve_table import FLAGS
from octavo.server.limits import TenantGate
from octavo.server.meters import RequestRecord
from octavo.server.metrics.requests import RequestMeters
from octavo.server.parts import Parts, ServedModel
from octavo.server.routes import metrics
from octavo.testing.near_core import NearCore, fake_loop

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "monitoring/grafana/dashboards/octavo.json"

pytestmark = pytest.mark.skipif(not DEPLOY.is_dir(), reason="deploy/ is in a checkout alone")


def dockerfile():
    """Return the instructions of the Dockerfile, comments and line breaks taken out."""
    text = (DEPLOY / "docker/Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [line.split(maxsplit=1) for line in joined.splitlines()]


def manifest(kind):
    documents = yaml.safe_load_all((DEPLOY / "kubernetes/octavo.yaml").read_text())
    return next(document for document in documents if document["kind"] == kind)


def container():
    return manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]


def compose():
    return yaml.safe_load((DEPLOY / "monitoring/compose.yaml").read_text())["services"]


def unit():
    """Return the settings of the unit, by name; each may come several times."""
    found = {}
    for line in (DEPLOY / "systemd/octavo.service").read_text().splitlines():
        name, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def flags_of(words):
    return [word[2:].partition("=")[0] for word in words if word.startswith("--")]


def entry_point():
    return json.loads(dict(dockerfile())["ENTRYPOINT"])


ALL_WORDS = {
    "Dockerfile": lambda: entry_point(),
    "compose": lambda: compose()["octavo"]["command"],
    "kubernetes": lambda: container()["args"],
    "systemd": lambda: shlex.split(unit()["ExecStart"][0]),
    "systemd's configuration": lambda: [
        f"--{name}" for name in yaml.safe_load((DEPLOY / "systemd/serve.yaml").read_text())
    ],
}


@pytest.mark.parametrize("where", ALL_WORDS)
def test_every_flag_is_one_that_the_command_has(where):
    names = flags_of(ALL_WORDS[where]())

    assert names
    known = {flag.name for flag in FLAGS.values()}
    assert [name for name in names if name not in known] == []


@pytest.mark.parametrize(
    "path",
    sorted(p for p in DEPLOY.rglob("*") if p.suffix in (".yaml", ".yml")),
    ids=lambda p: p.name,
)
def test_a_file_of_yaml_can_be_read(path):
    assert all(yaml.safe_load_all(path.read_text()))


# ── drains ────────────────────────────────────────────────────────────────────────────────────


def seconds(text):
    return int(text.removesuffix("s"))


def test_whoever_stops_a_server_waits_longer_than_it_drains():
    spec = manifest("Deployment")["spec"]["template"]["spec"]
    configured = yaml.safe_load((DEPLOY / "systemd/serve.yaml").read_text())["drain-timeout"]

    assert spec["terminationGracePeriodSeconds"] > drain(container()["args"])
    assert seconds(compose()["octavo"]["stop_grace_period"]) > drain(compose()["octavo"]["command"])
    assert seconds(unit()["TimeoutStopSec"][0]) > configured
    assert unit()["KillMode"] == ["mixed"]


def drain(words):
    return int(words[words.index("--drain-timeout") + 1])


def test_an_engine_that_ends_again_and_again_lets_the_server_be_started_afresh():
    configured = yaml.safe_load((DEPLOY / "systemd/serve.yaml").read_text())

    assert int(configured["core-restart-limit"]) > 0
    assert unit()["Restart"] == ["on-failure"]
    args = container()["args"]
    assert int(args[args.index("--core-restart-limit") + 1]) > 0
    policy = manifest("Deployment")["spec"]["template"]["spec"].get("restartPolicy", "Always")
    assert policy == "Always"


def test_an_engine_that_restarts_makes_a_pod_unready_and_lets_it_live():
    one = container()

    assert one["readinessProbe"]["httpGet"]["path"] == "/health"
    assert "tcpSocket" in one["livenessProbe"]


# ── rights ────────────────────────────────────────────────────────────────────────────────────


def test_nobody_serves_as_root():
    users = [rest for word, rest in dockerfile() if word == "USER"]
    spec = manifest("Deployment")["spec"]["template"]["spec"]

    assert users == ["10001:10001"]
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert unit()["DynamicUser"] == ["yes"]


def test_no_key_is_written_down_where_others_read_it():
    env = {entry["name"]: entry for entry in container()["env"]}

    assert "secretKeyRef" in env["OCTAVO_API_KEY"]["valueFrom"]
    assert compose()["octavo"]["environment"]["OCTAVO_API_KEY"].startswith("${OCTAVO_API_KEY:?")
    assert "LoadCredential" in unit()


def test_ports_of_the_compose_file_are_open_to_this_machine_alone():
    ports = [port for service in compose().values() for port in service["ports"]]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_a_container_that_writes_nothing_but_its_volume_has_a_folder_for_sockets():
    mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
    home = next(rest for word, rest in dockerfile() if word == "VOLUME")

    assert container()["securityContext"]["readOnlyRootFilesystem"] is True
    assert mounts == {home, "/tmp"}
    assert compose()["octavo"]["tmpfs"] == ["/tmp"]


def test_an_image_is_built_of_files_that_are_there():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]

    assert kept
    assert all((ROOT / name).exists() for name in kept)
    stages = [rest for word, rest in dockerfile() if word == "FROM"]
    assert len(stages) == 2
    assert stages[0].split()[0] == stages[1].split()[0], "wheels of one Python for another"
    assert any(word == "HEALTHCHECK" and "/health" in rest for word, rest in dockerfile())


# ── the dashboard ─────────────────────────────────────────────────────────────────────────────


def panels():
    return [p for p in json.loads(DASHBOARD.read_text())["panels"] if p["type"] != "row"]


def exposed():
    """Return the samples of a server that has answered, by name with the labels of each."""
    meters, gate = RequestMeters(), TenantGate(1)
    meters.ended(
        RequestRecord(
            tenant="a", route="/", finish="stop", prompt_tokens=9, cached_tokens=4,
            output_tokens=3, longest_output=3, n=1, max_tokens=3, queue_s=1, prefill_s=1,
            decode_s=1, e2e_s=3,
        )
    )  # fmt: skip
    meters.refused("a", 429)

    async def scrape():
        core = NearCore(fake_loop)
        await core.start()
        app = FastAPI()
        model = ServedModel(names=("m",), root="m", tokenizer=None, created_s=0)
        app.include_router(metrics.router(Parts(core=core, model=model, meters=meters, gate=gate)))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://octavo") as client:
            text = (await client.get("/metrics")).text
        await core.stop()
        return text

    text = asyncio.run(scrape())
    found = set(re.findall(r"^# TYPE (\S+) (?:counter|gauge)$", text, re.MULTILINE))
    for name in re.findall(r"^# TYPE (\S+) histogram$", text, re.MULTILINE):
        found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return found


def test_every_metric_of_the_dashboard_is_told():
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    names = set(re.findall(r"\b(?:vllm:|octavo_)\w+", " ".join(expressions)))

    assert len(names) > 25
    assert names - exposed() == set()


def test_panels_do_not_lie_on_each_other():
    places = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        own = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert not own & places, panel["title"]
        places |= own


def test_prometheus_reads_the_server_of_the_compose_file_and_grafana_prometheus():
    read = DEPLOY / "monitoring"
    scrape = yaml.safe_load((read / "prometheus.yml").read_text())["scrape_configs"][0]
    source = yaml.safe_load(
        (read / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    )["datasources"][0]

    host, _, port = scrape["static_configs"][0]["targets"][0].partition(":")
    assert host in compose()
    assert port in entry_point()
    assert scrape["metrics_path"] == "/metrics"
    assert "prometheus" in compose()
    assert source["url"] == "http://prometheus:9090"
    used = {panel["datasource"]["uid"] for panel in panels()}
    assert used == {source["uid"]}


# ── by the tools themselves, where they are ───────────────────────────────────────────────────


def run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, **options)


def needs(tool):
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"there is no {tool} here")


@needs("systemd-analyze")
def test_systemd_finds_no_fault_with_the_unit(tmp_path):
    text = (DEPLOY / "systemd/octavo.service").read_text()
    path = tmp_path / "octavo.service"
    path.write_text(text.replace("/opt/octavo/bin/octavo", "/bin/true"))

    done = run("systemd-analyze", "verify", str(path))

    assert (done.returncode, done.stderr) == (0, "")


@needs("kubectl")
def test_kustomize_finds_no_fault_with_the_manifest():
    done = run("kubectl", "kustomize", str(DEPLOY / "kubernetes"))

    assert done.returncode == 0, done.stderr
    assert [one["kind"] for one in yaml.safe_load_all(done.stdout)] == [
        "Service", "PersistentVolumeClaim", "Deployment",
    ]  # fmt: skip


@needs("promtool")
def test_promtool_finds_no_fault_with_the_configuration():
    done = run("promtool", "check", "config", str(DEPLOY / "monitoring/prometheus.yml"))

    assert done.returncode == 0, done.stdout + done.stderr


@needs("docker")
def test_docker_finds_no_fault_with_the_image_s_recipe():
    if run("docker", "buildx", "version").returncode or run("docker", "info").returncode:
        pytest.skip("docker has no builder or no daemon here")
    done = run("docker", "build", "--check", "-f", str(DEPLOY / "docker/Dockerfile"), str(ROOT))

    assert done.returncode == 0, done.stdout + done.stderr
