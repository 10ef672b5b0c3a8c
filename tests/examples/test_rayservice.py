"""KubeRay hands Ray Serve a configuration that Ray takes, of an application that builds."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

schema = pytest.importorskip("ray.serve.schema", reason="needs Ray: pip install 'monolane[scale]'")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def config() -> dict[str, Any]:
    service = next(yaml.safe_load_all((ROOT / "deploy" / "rayservice.yaml").read_text()))
    found: dict[str, Any] = yaml.safe_load(service["spec"]["serveConfigV2"])
    return found


def test_ray_takes_the_configuration() -> None:
    (application,) = schema.ServeDeploySchema.model_validate(config()).applications
    assert application.import_path == "app:build"


def test_the_application_is_built_of_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples" / "scale_out")
    (application,) = config()["applications"]
    built = importlib.import_module("app").build(application["args"])
    engines = built._bound_deployment.init_args[0]._bound_deployment
    assert engines.num_replicas == application["args"]["replicas"]
