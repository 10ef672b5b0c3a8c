"""The manifests of deploy/ say what Kubernetes and KubeRay take, and fit the image."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

jsonschema = pytest.importorskip("jsonschema", reason="scripts/check --release installs it")
kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="scripts/check --release installs kubernetes-validate"
)
DEPLOY = Path(__file__).parents[2] / "deploy"
OLDEST, NEWEST = "1.25", "1.36"

pytestmark = pytest.mark.release


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the templates of pods that a document has."""
    if document["kind"] == "RayService":
        cluster = document["spec"]["rayClusterConfig"]
        groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
        return [group["template"] for group in groups]
    return [document["spec"]["template"]] if document["kind"] == "Deployment" else []


ALL = [(name, x) for name in ("kubernetes.yaml", "rayservice.yaml") for x in documents(name)]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize(
    ("name", "document"), ALL, ids=lambda x: x["kind"] if isinstance(x, dict) else x
)
def test_kubernetes_takes_each_document(name: str, document: dict[str, Any], version: str) -> None:
    checked = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods(document)]
    if document["kind"] != "RayService":
        checked.append(document)
    for x in checked:
        kubernetes_validate.validate(x, version, strict=True)


def test_a_wrong_field_is_seen() -> None:
    (deployment,) = (x for _, x in ALL if x["kind"] == "Deployment")
    deployment = json.loads(json.dumps(deployment))
    deployment["spec"]["template"]["spec"]["securityContext"]["runAsNobody"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, NEWEST, strict=True)


def test_kuberay_takes_the_service() -> None:
    schema = json.loads(Path(__file__).with_name("rayservice.schema.json").read_text())
    (service,) = (x for _, x in ALL if x["kind"] == "RayService")
    jsonschema.validate(service, schema)
    service = json.loads(json.dumps(service))
    service["spec"]["rayClusterConfig"]["workers"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(service, schema)


def test_pods_run_as_the_images_user_and_write_where_it_may() -> None:
    containers = (DEPLOY / "Containerfile").read_text()
    users = set(map(int, re.findall(r"^USER (\d+)$", containers, re.MULTILINE)))
    for _, document in ALL:
        for pod in pods(document):
            spec = pod["spec"]
            assert {spec["securityContext"]["runAsUser"]} == users
            (container,) = spec["containers"]
            mounts = {x["mountPath"]: x["name"] for x in container["volumeMounts"]}
            assert {"/cache", "/tmp"} <= mounts.keys()
            assert set(mounts.values()) == {volume["name"] for volume in spec["volumes"]}
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
