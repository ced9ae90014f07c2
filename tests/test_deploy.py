"""What deploy/ says of ports, paths, users and times is what forebay does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from forebay.gateway.config import load
from forebay.gateway.config.idle import find_idle
from forebay.gateway.config.sections import Config
from forebay.gateway.discovery import expanded
from forebay.gateway.pools import Pool
from forebay.gateway.status import take_snapshot
from forebay.gateway.telemetry.histogram import Histogram
from forebay.gateway.telemetry.labels import LabelSpace
from forebay.gateway.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
VALUES = {
    "FOREBAY_ADMIN_KEY": "a-key-of-some-length-for-the-admin-port",
    "FOREBAY_STATE_URL": "redis://valkey:6379/0",
    "FOREBAY_STATE_SECRET": "the-same-on-all-replicas-of-it",
}
NOWHERE = {"name": "e", "engine": "vllm", "url": "http://nowhere.example:8000", "discover": "5s"}
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
UNIT = (DEPLOY / "systemd" / "forebay.service").read_text("utf-8")


def _nobody(_pool: str, _endpoint: str, _state: str) -> None:
    pass


def loaded(path: Path) -> Any:
    return load.read(path.read_text("utf-8"), VALUES)


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text("utf-8")))


def pod() -> Any:
    (stateful,) = documents("statefulset.yaml")
    return stateful["spec"]["template"]["spec"]


def unit(name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return value


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))


@pytest.mark.parametrize("place", ["kubernetes", "compose"])
def test_a_configuration_says_where_state_goes_and_keeps_metrics_from_callers(place: str):
    config = loaded(DEPLOY / place / "forebay.yaml")
    assert config.state.url is not None
    assert find_idle(config, 0.0) == []
    assert config.server.metrics == "admin"
    assert config.server.admin is not None
    assert config.server.admin.key
    assert config.server.admin.host == config.server.host == "0.0.0.0"


def test_all_values_a_configuration_wants_are_in_the_example_of_secrets():
    text = (KUBERNETES / "secrets.env.example").read_text("utf-8")
    wanted = re.findall(r"\$\{(\w+)\}", (KUBERNETES / "forebay.yaml").read_text("utf-8"))
    assert set(re.findall(r"^(\w+)=", text, re.MULTILINE)) == set(wanted) == set(VALUES)


def test_the_examples_values_are_enough_for_a_check():
    lines = (KUBERNETES / "secrets.env.example").read_text("utf-8").split()
    values = dict(line.split("=", 1) for line in lines)
    assert find_idle(load.read((KUBERNETES / "forebay.yaml").read_text("utf-8"), values), 0.0) == []


def test_secrets_that_are_put_in_go_into_no_commit_and_no_image():
    assert "secrets.env" in (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert "**/secrets.env" in (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()


def test_a_pool_without_an_address_is_told_of_as_one_that_is_down():
    settings = {"version": 1, "pools": [{"name": "p", "models": ["m"], "endpoints": [NOWHERE]}]}
    config = expanded(Config.model_validate(settings), {})
    (section,) = config.pools
    assert section.endpoints == ()
    pool = Pool(section, seed=1, itl=Histogram((1.0,)), changed=_nobody)
    snapshot = take_snapshot([pool], now=0.0)
    text = Metrics(LabelSpace.from_config(config)).render("", snapshot)[1].decode()
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text("utf-8"))
    (down,) = [r for r in rules["groups"][0]["rules"] if r.get("alert") == "ForebayPoolDown"]
    names = re.findall(r"forebay_\w+", down["expr"])
    shown = [name for name in names if f'{name}{{pool="p"' in text]
    assert shown == ["forebay_queue_requests"]


def test_a_pods_ports_are_the_servers():
    server = loaded(KUBERNETES / "forebay.yaml").server
    (container,) = pod()["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": server.port, "admin": server.admin.port}
    assert f"EXPOSE {server.port} {server.admin.port}\n" in DOCKERFILE
    targets = [
        port["targetPort"] for each in documents("services.yaml") for port in each["spec"]["ports"]
    ]
    assert targets == ["http", "admin"]


def test_probes_ask_what_is_meant_for_them():
    (container,) = pod()["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert ":8080/healthz" in DOCKERFILE


def test_everybody_waits_for_a_drain():
    drain = loaded(KUBERNETES / "forebay.yaml").server.drain
    assert pod()["terminationGracePeriodSeconds"] > drain.notice + drain.limit
    default = loaded(DEPLOY / "compose" / "forebay.yaml").server.drain
    least = default.notice + default.limit
    assert int(unit("TimeoutStopSec")) > least
    assert int(compose()["services"]["forebay"]["stop_grace_period"].removesuffix("s")) > least


def test_a_pod_runs_as_the_images_user_and_may_write_where_the_image_does():
    user, folder = (
        pod()["securityContext"]["runAsUser"],
        re.findall(r"^VOLUME (.*)$", DOCKERFILE, re.MULTILINE)[0],
    )
    assert f"--uid {user} " in DOCKERFILE
    assert f"USER {user}\n" in DOCKERFILE
    (container,) = pod()["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    (command,) = re.findall(r"^CMD (\[.*)$", DOCKERFILE, re.MULTILINE)
    assert mounts[str(Path(json.loads(command)[-1]).parent)] == "config"
    assert mounts[folder] == "state"


def test_a_pod_is_given_nothing_of_the_clusters():
    assert pod()["automountServiceAccountToken"] is False
    assert pod()["enableServiceLinks"] is False


def test_a_pod_may_hold_all_that_the_server_buffers():
    (container,) = pod()["containers"]
    most = loaded(KUBERNETES / "forebay.yaml").server.max_buffered
    assert container["resources"]["limits"]["memory"] == "1Gi"
    assert most + 256 * 2**20 < 2**30


def test_what_the_compose_file_mounts_is_there():
    for service in compose()["services"].values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text("utf-8"))
    (job,) = scraped["scrape_configs"]
    admin = loaded(DEPLOY / "compose" / "forebay.yaml").server.admin
    assert job["static_configs"] == [{"targets": [f"forebay:{admin.port}"]}]
    assert [Path(rules).name for rules in scraped["rule_files"]] == ["alerts.yaml"]


def test_panels_of_the_dashboard_do_not_overlap():
    panels = json.loads((DEPLOY / "grafana" / "forebay.json").read_text("utf-8"))["panels"]
    taken = set[tuple[int, int]]()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert all(0 <= x < 24 for x, _ in cells)
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_the_manifests(tmp_path: Path):
    shutil.copytree(KUBERNETES, tmp_path / "k")
    (tmp_path / "k" / "secrets.env.example").rename(tmp_path / "k" / "secrets.env")
    told = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path / "k")], capture_output=True, text=True, check=True
    ).stdout
    built = {each["kind"]: each for each in yaml.safe_load_all(told)}
    assert {each["metadata"].get("namespace", "forebay") for each in built.values()} == {"forebay"}
    spec = built["StatefulSet"]["spec"]["template"]["spec"]
    secret = built["Secret"]["metadata"]["name"]
    assert spec["containers"][0]["envFrom"] == [{"secretRef": {"name": secret}}]
    assert built["ConfigMap"]["metadata"]["name"] == "forebay"


def test_the_unit_starts_the_server_from_the_folder_that_the_page_installs_to():
    assert unit("ExecStart") == "/opt/forebay/bin/forebay serve -c /etc/forebay/forebay.yaml"
    page = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    for path in ("/opt/forebay", "/etc/forebay/forebay.yaml", "/etc/forebay/secrets.env"):
        assert path in UNIT
        assert path in page
