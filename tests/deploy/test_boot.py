"""What an engine starts as a worker connects to it before anything can kill it."""

from typing import Any

import pytest
from apache_beam.portability.api import beam_fn_api_pb2, beam_runner_api_pb2, endpoints_pb2
from apache_beam.runners.worker import bundle_processor

from deploy.cluster.boot import connect_first
from transforms.runtime.versions import VersionsError, check_versions, own_versions


def test_a_worker_opens_its_data_connection_before_it_makes_a_stages_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    class Channels:
        def create_data_channel(self, port: beam_fn_api_pb2.RemoteGrpcPort) -> None:
            asked.append(port.api_service_descriptor.url)

    port = beam_fn_api_pb2.RemoteGrpcPort(
        api_service_descriptor=endpoints_pb2.ApiServiceDescriptor(url="engine:1")
    )
    spec, transform = beam_runner_api_pb2.FunctionSpec, beam_runner_api_pb2.PTransform
    data = transform(
        spec=spec(urn=bundle_processor.DATA_INPUT_URN, payload=port.SerializeToString())
    )
    work = transform(spec=spec(urn="no such function"))
    stage = beam_fn_api_pb2.ProcessBundleDescriptor(transforms={"data": data, "work": work})
    monkeypatch.setattr(
        bundle_processor, "BundleProcessor", bundle_processor.BundleProcessor
    )  # to have it back
    connect_first()
    with pytest.raises(KeyError, match=r"[Nn]o such"):
        bundle_processor.BundleProcessor(frozenset(), stage, None, Channels())  # type: ignore[arg-type]
    assert asked == ["engine:1"]


@pytest.mark.parametrize(
    "form",
    ['{"beam:option:launcher_versions:v1": "%s"}', '{"options": {"launcher_versions": "%s"}}'],
)
def test_a_worker_of_other_versions_than_its_commands_says_both(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_OPTIONS", form % own_versions())
    check_versions()
    monkeypatch.setenv("PIPELINE_OPTIONS", form % "Python 3.9 with Apache Beam 2.60.0")
    with pytest.raises(
        VersionsError,
        match=r"has Python 3\.1\d with .* Python 3\.9 with Apache Beam 2\.60\.0: install",
    ):
        check_versions()
    monkeypatch.setattr(
        bundle_processor, "BundleProcessor", bundle_processor.BundleProcessor
    )  # to have it back
    connect_first()
    no_bundle: Any = (frozenset(), beam_fn_api_pb2.ProcessBundleDescriptor(), None, None)
    with pytest.raises(VersionsError):  # where its engine hears of it
        bundle_processor.BundleProcessor(*no_bundle)
