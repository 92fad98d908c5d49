"""The manifests: valid by the Flink operator's published CRD and by Kubernetes' own schemas, and true to our programs."""

import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deploy.cluster.artefacts import missing_tools, resolve
from pipeline.main import build_parser

KUBERNETES = "1.31"


def manifest(repo_dir: Path, name: str) -> Any:
    return yaml.safe_load((repo_dir / "deploy" / "kubernetes" / name).read_text("utf-8"))


@pytest.fixture(scope="module")
def flink_schema(repo_dir: Path) -> Any:
    """The OpenAPI schema of FlinkDeployment in the operator's release, unknown fields refused."""
    if (problem := missing_tools()) is not None:
        pytest.skip(f"the operator's CRD can't be had: {problem}")
    (jar,) = [jar for jar in resolve(repo_dir / "deploy" / "kubernetes" / "pom.xml") if "operator-api" in jar.name]
    with zipfile.ZipFile(jar) as archive:
        crd = yaml.safe_load(archive.read("META-INF/fabric8/flinkdeployments.flink.apache.org-v1.yml"))
    (version,) = [version for version in crd["spec"]["versions"] if version["name"] == "v1beta1"]
    return strict(version["schema"]["openAPIV3Schema"])


def strict(schema: Any) -> Any:
    """``schema`` with every object closed that lists its properties: the API server drops what it does not know, we refuse it."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: strict(value) for name, value in schema.items()}
    if isinstance(closed.get("properties"), dict) and closed.get("type") == "object" and "additionalProperties" not in closed:
        closed["additionalProperties"] = False
    return closed


def body(deployment: Any) -> Any:
    """What the CRD's schema describes: apiVersion, kind and metadata are the API server's own."""
    return {"spec": deployment["spec"]}


def test_the_flink_deployment_is_valid_by_the_operators_own_schema(repo_dir: Path, flink_schema: Any) -> None:
    deployment = manifest(repo_dir, "flink.yaml")
    assert (deployment["apiVersion"], deployment["kind"]) == ("flink.apache.org/v1beta1", "FlinkDeployment")
    jsonschema.validate(body(deployment), flink_schema)


@pytest.mark.parametrize(
    ("path", "value"), [(("taskManager", "replicas"), "two"), (("taskMangers",), {}), (("flinkVersion",), "v0")]
)
def test_the_schema_refuses_what_is_wrong(repo_dir: Path, flink_schema: Any, path: tuple[str, ...], value: Any) -> None:
    deployment = manifest(repo_dir, "flink.yaml")
    place = deployment["spec"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body(deployment), flink_schema)


def test_pods_and_jobs_are_valid_by_kubernetes_own_schemas(repo_dir: Path) -> None:
    for name in ("job.yaml", "flink-embed.yaml"):
        kubernetes_validate.validate(manifest(repo_dir, name), KUBERNETES, strict=True)
    sidecar = manifest(repo_dir, "flink.yaml")["spec"]["taskManager"]["podTemplate"]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": sidecar}
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):  # and these schemas do refuse
        kubernetes_validate.validate(pod | {"spec": sidecar | {"contaners": []}}, KUBERNETES, strict=True)


def test_the_commands_in_the_manifests_are_ones_that_the_programs_take(repo_dir: Path) -> None:
    parser, _ = build_parser({"embed"})
    (job,) = manifest(repo_dir, "job.yaml")["spec"]["template"]["spec"]["containers"]
    assert parser.parse_args(job["args"]).device == "cuda"
    (submit,) = manifest(repo_dir, "flink-embed.yaml")["spec"]["template"]["spec"]["containers"]
    assert parser.parse_args(submit["args"][submit["args"].index("embed") :]).device == "cuda"
    (sidecar,) = manifest(repo_dir, "flink.yaml")["spec"]["taskManager"]["podTemplate"]["spec"]["containers"]
    port = sidecar["ports"][0]["containerPort"]
    assert f"--service_port={port}" in sidecar["command"]
    assert submit["args"][submit["args"].index("--pool") + 1] == f"localhost:{port}"


def test_the_deployments_settings_are_those_that_the_test_cluster_runs_with(repo_dir: Path) -> None:
    ours = yaml.safe_load((repo_dir / "deploy" / "flink" / "config.yaml").read_text("utf-8"))
    theirs = manifest(repo_dir, "flink.yaml")["spec"]["flinkConfiguration"]
    same = {name: str(ours[name]) for name in theirs if name != "heartbeat.timeout"}  # longer where machines are far apart
    assert same == {name: theirs[name] for name in same}
