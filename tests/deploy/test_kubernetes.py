"""The manifests as `kubectl apply -k` sends them: valid by the published schemas, true to our programs, and not privileged."""

import copy
import json
import os
import re
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pipeline.cli.exit_codes import Exit
from pipeline.main import build_parser
from pipeline.runners.beam_options import beam_flags, pipeline_options, runner_name, split_arguments
from tests.clusters.artefacts import missing_tools, resolve
from tests.clusters.processes import free_port, worker_environment

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install '.[test-all]'")
pytestmark = pytest.mark.slow
KUBERNETES = "1.31"
JOBS = ("cpu", "gpu", "gke", "eks")
FLINK = tuple(f"flink-{hardware}" for hardware in JOBS)
OVERLAYS = (*JOBS, *FLINK)
GPU = "nvidia.com/gpu"
ROLES = ("jobManager", "taskManager")

Objects = dict[str, Any]  # the only object of each kind, by its kind


def render(folder: Path) -> Objects:
    """What `kubectl apply -k FOLDER` would send."""
    if (kubectl := shutil.which("kubectl")) is not None:
        command = [kubectl, "kustomize"]
    elif (kustomize := shutil.which("kustomize")) is not None:
        command = [kustomize, "build"]
    else:
        pytest.skip("neither kubectl nor kustomize is installed")
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    by_kind = {each["kind"]: each for each in objects}
    assert len(by_kind) == len(objects)
    return by_kind


@pytest.fixture(scope="module")
def overlays(repo_dir: Path) -> dict[str, Objects]:
    """Every overlay, rendered."""
    folder = repo_dir / "deploy" / "kubernetes" / "overlays"
    assert sorted(path.name for path in folder.iterdir()) == sorted(OVERLAYS)
    return {name: render(folder / name) for name in OVERLAYS}


@pytest.fixture(scope="module")
def flink_schema(repo_dir: Path) -> jsonschema.Draft202012Validator:
    """By the OpenAPI schema of FlinkDeployment in the operator's release, unknown fields refused."""
    if (problem := missing_tools()) is not None:
        pytest.skip(f"the operator's CRD can't be had: {problem}")
    (jar,) = [
        jar
        for jar in resolve(repo_dir / "deploy" / "kubernetes" / "pom.xml")
        if "operator-api" in jar.name
    ]
    with zipfile.ZipFile(jar) as archive:
        crd = yaml.load(
            archive.read("META-INF/fabric8/flinkdeployments.flink.apache.org-v1.yml"),
            yaml.CSafeLoader,
        )
    (version,) = [version for version in crd["spec"]["versions"] if version["name"] == "v1beta1"]
    return jsonschema.Draft202012Validator(strict(version["schema"]["openAPIV3Schema"]))


def strict(schema: Any) -> Any:
    """``schema`` with every object closed that lists its properties: the API server drops what it does not know, we refuse it."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: strict(value) for name, value in schema.items()}
    if (
        isinstance(closed.get("properties"), dict)
        and closed.get("type") == "object"
        and "additionalProperties" not in closed
    ):
        closed["additionalProperties"] = False
    return closed


def body(deployment: Any) -> Any:
    """What the CRD's schema describes: apiVersion, kind and metadata are the API server's own."""
    return {"spec": deployment["spec"]}


def pods(objects: Objects) -> Iterator[tuple[str, Any]]:
    """Every pod template, by a name of its use."""
    if "FlinkDeployment" in objects:
        for role in ROLES:
            yield role, objects["FlinkDeployment"]["spec"][role]["podTemplate"]["spec"]
    yield "job", objects["Job"]["spec"]["template"]["spec"]


def computing(objects: Objects) -> tuple[Any, Any]:
    """The pod that has the model, and its container."""
    role, field = (
        ("taskManager", "initContainers") if "FlinkDeployment" in objects else ("job", "containers")
    )
    pod = dict(pods(objects))[role]
    (container,) = pod[field]
    return pod, container


def arguments(objects: Objects) -> list[str]:
    """What the Job's container runs, with the variables as Kubernetes puts them in."""
    (container,) = objects["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [
        {"configMapRef": {"name": objects["ConfigMap"]["metadata"]["name"]}}
    ]
    return [
        re.sub(r"\$\((\w+)\)", lambda name: objects["ConfigMap"]["data"][name[1]], value)
        for value in container["args"]
    ]


def refused(repo_dir: Path, checked: Mapping[str, Any]) -> dict[str, str]:
    """Those of the pods that the API server would not admit as "restricted", and why."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed, which builds Kubernetes' own admission code")
    folder = repo_dir / "tests" / "deploy" / "pod_security"
    pods_json = json.dumps(checked)
    done = subprocess.run(
        ["go", "run", "."], cwd=folder, input=pods_json, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_flink_deployments_are_valid_by_the_operators_own_schema(
    overlays: dict[str, Objects], flink_schema: jsonschema.Draft202012Validator
) -> None:
    for name in FLINK:
        deployment = overlays[name]["FlinkDeployment"]
        assert deployment["apiVersion"] == "flink.apache.org/v1beta1"
        flink_schema.validate(body(deployment))


@pytest.mark.parametrize(
    ("path", "value"),
    [(("taskManager", "replicas"), "two"), (("taskMangers",), {}), (("flinkVersion",), "v0")],
)
def test_the_schema_refuses_what_is_wrong(
    overlays: dict[str, Objects],
    flink_schema: jsonschema.Draft202012Validator,
    path: tuple[str, ...],
    value: Any,
) -> None:
    deployment = copy.deepcopy(overlays["flink-gke"]["FlinkDeployment"])
    field = deployment["spec"]
    for name in path[:-1]:
        field = field[name]
    field[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        flink_schema.validate(body(deployment))


@pytest.mark.slow
def test_everything_else_is_valid_by_kubernetes_own_schemas(overlays: dict[str, Objects]) -> None:
    def check(spec: Any) -> None:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)

    for objects in overlays.values():
        for kind in ("ServiceAccount", "ConfigMap", "Job"):
            kubernetes_validate.validate(objects[kind], KUBERNETES, strict=True)
        for _, spec in pods(objects):
            # Flink's own container gets its image from the operator.
            check(
                {**spec, "containers": [{"image": "flink", **each} for each in spec["containers"]]}
            )
    with pytest.raises(kubernetes_validate.ValidationError):  # and these schemas do refuse
        check({**spec, "contaners": []})


@pytest.fixture
def deployments(repo_dir: Path, overlays: dict[str, Objects], tmp_path: Path) -> dict[str, Any]:
    """The Deployments, by role, that the operator's own code makes of the overlay flink-gke."""
    if (problem := missing_tools()) is not None:
        pytest.skip(f"the operator's code can't be had: {problem}")
    spec = overlays["flink-gke"]["FlinkDeployment"]["spec"]
    for role in ROLES:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": role},
            **spec[role]["podTemplate"],
        }
        (tmp_path / role).write_text(json.dumps(pod), "utf-8")
    settings = {
        "kubernetes.cluster-id": "elmo-flink",
        "kubernetes.container.image.ref": spec["image"],
        "kubernetes.service-account": spec["serviceAccount"],
        "kubernetes.internal.taskmanager.replicas": spec["taskManager"][
            "replicas"
        ],  # which native mode does not look at
        "kubernetes.internal.cluster-mode": "SESSION",
        "taskmanager.rpc.port": 6122,
        "blob.server.port": 6124,
        **{
            f"kubernetes.{role.lower()}.cpu.amount": spec[role]["resource"]["cpu"] for role in ROLES
        },
    }
    classpath = os.pathsep.join(
        str(jar) for jar in resolve(repo_dir / "deploy" / "kubernetes" / "pom.xml")
    )
    program = repo_dir / "tests" / "deploy" / "FlinkDeployments.java"
    command = ["java", "-cp", classpath, str(program), *(str(tmp_path / role) for role in ROLES)]
    command += [f"{name}={value}" for name, value in settings.items()]
    environment = {**os.environ, "FLINK_CONF_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_the_operator_makes_of_it_deployments_with_all_task_managers_and_a_pool_in_each(
    repo_dir: Path, deployments: dict[str, Any]
) -> None:
    for deployment in deployments.values():
        kubernetes_validate.validate(deployment, KUBERNETES, strict=True)
    assert {role: deployment["spec"]["replicas"] for role, deployment in deployments.items()} == {
        "jobManager": 1,
        "taskManager": 2,
    }
    templates = {role: deployment["spec"]["template"] for role, deployment in deployments.items()}
    (worker,) = templates["taskManager"]["spec"]["initContainers"]
    assert (worker["name"], worker["restartPolicy"]) == ("elmo-store-worker", "Always")
    for template in templates.values():
        (main,) = template["spec"]["containers"]
        assert main["command"] == ["/docker-entrypoint.sh"]
    assert refused(repo_dir, templates) == {}


@pytest.mark.slow
def test_the_api_servers_own_code_admits_every_pod_as_restricted(
    repo_dir: Path, overlays: dict[str, Objects]
) -> None:
    checked = {
        f"{name} {role}": {"spec": spec}
        for name, objects in overlays.items()
        for role, spec in pods(objects)
    }
    careless = copy.deepcopy(checked["flink-gke taskManager"])
    del careless["spec"]["initContainers"][0]["securityContext"]["capabilities"]
    reasons = refused(repo_dir, checked | {"careless": careless})
    assert "elmo-store-worker" in reasons.pop("careless")
    assert reasons == {}


def test_all_pods_use_the_service_account_and_none_may_ask_kubernetes(
    overlays: dict[str, Objects],
) -> None:
    for objects in overlays.values():
        account = objects["ServiceAccount"]
        assert account["automountServiceAccountToken"] is False
        accounts = [objects["Job"]["spec"]["template"]["spec"]["serviceAccountName"]]
        if "FlinkDeployment" in objects:
            accounts.append(objects["FlinkDeployment"]["spec"]["serviceAccount"])
        assert set(accounts) == {account["metadata"]["name"]}
    assert (
        "eks.amazonaws.com/role-arn" in overlays["eks"]["ServiceAccount"]["metadata"]["annotations"]
    )


def outcome(rules: Any, container: str, code: int, *, disrupted: bool = False) -> str:
    """What Kubernetes does with a pod whose container ended with ``code``: the first rule that fits, "Count" without one."""
    for rule in rules:
        if "onExitCodes" in rule:
            on = rule["onExitCodes"]
            assert (on["operator"], on["containerName"]) == ("In", container)
            if code in on["values"]:
                return str(rule["action"])
        elif (
            disrupted and {"type": "DisruptionTarget", "status": "True"} in rule["onPodConditions"]
        ):
            return str(rule["action"])
    return "Count"


def test_a_job_is_tried_again_only_where_that_may_help(overlays: dict[str, Objects]) -> None:
    for objects in overlays.values():
        spec = objects["Job"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        rules = spec["podFailurePolicy"]["rules"]
        ends = {code for code in Exit if outcome(rules, container["name"], code) == "FailJob"}
        assert ends == {Exit.BAD_USAGE, Exit.REFUSED}
        assert {
            outcome(rules, container["name"], code)
            for code in (1, Exit.BAD_LOCATION, Exit.INCOMPLETE, 137)
        } == {"Count"}
        assert outcome(rules, container["name"], Exit.INCOMPLETE, disrupted=True) == "Ignore"
        assert spec["template"]["spec"]["restartPolicy"] == "Never"  # which the policy asks for
        assert spec["backoffLimit"] > 0
        assert spec["ttlSecondsAfterFinished"] > 0


def test_the_commands_are_ones_that_the_programs_take(overlays: dict[str, Objects]) -> None:
    parser, _ = build_parser({"embed"})
    for name, objects in overlays.items():
        own, beams = split_arguments(arguments(objects))
        options = parser.parse_args(own)
        assert options.device == ("cpu" if name.endswith("cpu") else "cuda")
        assert [*options.inputs, options.output] == (
            [f"{'s3' if name.endswith('eks') else 'gs'}://BUCKET/{x}" for x in ("text/", "store")]
        )
        assert {option.partition("=")[0] for option in beams} <= set(beam_flags())
        assert runner_name(pipeline_options(beams)) == (
            "FlinkRunner" if name in FLINK else "FnApiRunner"
        )


def test_images_of_cpus_are_those_without_cuda(overlays: dict[str, Objects]) -> None:
    for name, objects in overlays.items():
        images = re.findall(
            r'"image": "REGISTRY/(elmo-store[-a-z]*):0\.1\.0([-a-z]*)"', json.dumps(objects)
        )
        ours = {tag for image, tag in images if image != "elmo-store-flink-cluster"}
        assert ours == ({"-cpu"} if name.endswith("cpu") else {""})
        assert (("elmo-store-flink-cluster", "") in images) == (name in FLINK)


def test_every_container_has_limits_of_memory_and_disk_and_every_job_a_deadline(
    overlays: dict[str, Objects],
) -> None:
    for objects in overlays.values():
        assert objects["Job"]["spec"]["activeDeadlineSeconds"] > 0
        for role, pod in pods(objects):
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                if container["name"] == "flink-main-container":  # the operator's
                    assert {"memory", "ephemeralStorage"} <= objects["FlinkDeployment"]["spec"][
                        role
                    ]["resource"].keys()
                else:
                    assert {"memory", "ephemeral-storage"} <= container["resources"][
                        "limits"
                    ].keys()


def test_only_gpu_overlays_ask_for_gpus_and_gke_and_eks_name_one_kind(
    overlays: dict[str, Objects],
) -> None:
    selectors = {
        "gke": {"cloud.google.com/gke-accelerator": "nvidia-l4"},
        "eks": {"node.kubernetes.io/instance-type": "g6.2xlarge"},
    }
    for name, objects in overlays.items():
        pod, container = computing(objects)
        has_gpu = not name.endswith("cpu")
        assert (container["resources"]["limits"].get(GPU) == "1") == has_gpu
        assert any(each["key"] == GPU for each in pod.get("tolerations", [])) == has_gpu
        assert pod.get("nodeSelector") == selectors.get(name.removeprefix("flink-"))
        for _, other in pods(objects):
            for each in [*other.get("initContainers", []), *other["containers"]]:
                assert each is container or GPU not in each.get("resources", {}).get("limits", {})


def test_the_flink_cluster_fits_the_job_that_is_submitted_to_it(
    overlays: dict[str, Objects],
) -> None:
    for name in FLINK:
        cluster, argv = overlays[name]["FlinkDeployment"], arguments(overlays[name])
        given = dict(value.removeprefix("--").split("=", 1) for value in argv if "=" in value)
        pod, worker = computing(overlays[name])
        # In native mode the operator leaves TaskManagers to Flink, which starts one when a job asks, whatever `replicas` says.
        assert cluster["spec"]["mode"] == "standalone"
        assert given["parallelism"] == str(cluster["spec"]["taskManager"]["replicas"])
        assert (
            given["threads"] == worker["resources"]["requests"]["cpu"]
        )  # Flink knows its own container's cores only
        assert given["flink_master"] == f"{cluster['metadata']['name']}-rest:8081"
        (port,) = worker["ports"]
        assert f"--service_port={port['containerPort']}" in worker["command"]
        assert (given["environment_type"], given["environment_config"]) == (
            "EXTERNAL",
            f"localhost:{port['containerPort']}",
        )
        # A sidecar, ready before the TaskManager starts; the operator merges containers by their position unless told otherwise.
        assert (worker["restartPolicy"], worker["startupProbe"]["tcpSocket"]["port"]) == (
            "Always",
            port["name"],
        )
        assert [each["name"] for each in pod["containers"]] == ["flink-main-container"]


def test_the_submission_waits_until_flink_answers(overlays: dict[str, Objects]) -> None:
    (wait,) = overlays["flink-cpu"]["Job"]["spec"]["template"]["spec"]["initContainers"]
    port = free_port()
    *shell, command = [
        part.replace("elmo-flink-rest:8081", f"localhost:{port}") for part in wait["command"]
    ]
    assert str(port) in command
    said, written = os.pipe()
    waiting = subprocess.Popen(
        [*shell, command.replace("sleep 5", "sleep 0.1")], env=worker_environment(), stderr=written
    )
    os.close(written)
    with open(said, "rb") as lines:
        assert any(b"Connection refused" in line for line in lines)
        assert waiting.poll() is None

        class Flink(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if self.path == "/overview" else 404)
                self.end_headers()

        with HTTPServer(("localhost", port), Flink) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            assert waiting.wait(timeout=30) == 0
            server.shutdown()


def test_the_deployments_settings_are_those_that_the_test_cluster_runs_with(
    repo_dir: Path, overlays: dict[str, Objects]
) -> None:
    ours = yaml.safe_load((repo_dir / "deploy" / "flink" / "config.yaml").read_text("utf-8"))
    spec = overlays["flink-cpu"]["FlinkDeployment"]["spec"]
    # Machines are farther apart, and nodes take minutes to come; addresses are the operator's.
    others = {
        "heartbeat.timeout",
        "slot.request.timeout",
        *(name for name in ours if str(ours[name]) == "localhost"),
    }
    same = {name: str(value) for name, value in ours.items() if name not in others}
    assert same == {
        name: value for name, value in spec["flinkConfiguration"].items() if name not in others
    }
    # With Flink's own defaults of what config.yaml leaves out: the JobManager's metaspace of 256 MB, and 192 MB beside it.
    sizes = {
        name: int(value.removesuffix("m"))
        for name, value in same.items()
        if ".memory." in name and not name.endswith("max")
    }
    for role, defaults in (("jobManager", 256 + 192), ("taskManager", 0)):
        total = sum(size for name, size in sizes.items() if name.startswith(role.lower()))
        assert spec[role]["resource"]["memory"] == f"{total + defaults}m"


def test_the_overlay_in_the_docs_sets_images_places_and_the_number_of_task_managers(
    repo_dir: Path, tmp_path: Path
) -> None:
    shutil.copytree(repo_dir / "deploy" / "kubernetes", tmp_path / "deploy" / "kubernetes")
    section = (repo_dir / "docs" / "deploy.md").read_text("utf-8").partition("## Kubernetes")[2]
    (own,) = re.findall(r"```yaml\n# mine/(kustomization\.yaml)\n(.*?)```", section, re.DOTALL)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / own[0]).write_text(own[1], "utf-8")
    objects = render(tmp_path / "mine")
    text = json.dumps(objects)
    assert "REGISTRY" not in text
    assert "BUCKET" not in text
    assert (
        f"--parallelism={objects['FlinkDeployment']['spec']['taskManager']['replicas']}"
        in arguments(objects)
    )
    assert "--parallelism=2" not in arguments(objects)
