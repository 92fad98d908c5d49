"""``elmo-store-worker``: what an engine starts as a Beam worker (``--environment_type=PROCESS``).

elmo-store-worker --id=ID --provision_endpoint=HOST:PORT

The engine gives a name and the address of its provision service; this asks there for the other addresses and the job's options,
and then becomes Beam's own worker, so that Beam is imported once; `deploy.cluster.watched` watches it. Files that a job stages
are not fetched: the package is installed wherever this program is.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from deploy.cluster.watched import run_watched

PROVISION_SECONDS = 60.0


def arguments_of(argv: Sequence[str]) -> tuple[str, str]:
    """Worker id and provision endpoint; what else an engine says is left alone (older ones repeat every endpoint)."""
    parser = argparse.ArgumentParser(
        prog="elmo-store-worker", description="A Beam worker of a cluster; started by its engine."
    )
    parser.add_argument("--id", required=True, help="the worker's name, given by the engine")
    parser.add_argument(
        "--provision_endpoint",
        required=True,
        metavar="HOST:PORT",
        help="the engine's provision service",
    )
    known, _ = parser.parse_known_args(list(argv))
    return known.id, known.provision_endpoint


def provisioned(worker_id: str, endpoint: str) -> Any:
    """Beam's ProvisionInfo for this worker: endpoints and the job's options. grpc.RpcError if nobody answers."""
    import grpc
    from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc

    with grpc.insecure_channel(endpoint) as channel:
        stub = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        # The server tells the workers that it serves apart by this entry.
        reply = stub.GetProvisionInfo(
            request,
            metadata=[("worker_id", worker_id)],
            timeout=PROVISION_SECONDS,
            wait_for_ready=True,
        )
    return reply.info


def worker_variables(worker_id: str, info: Any) -> Mapping[str, str]:
    """The environment that Beam's worker reads, from its ProvisionInfo; as Beam's own boot programs set it.

    But for the folder of staged files, which an engine's SIGKILL would leave behind: nothing is staged for these workers.
    """
    from google.protobuf import json_format

    variables = {
        "WORKER_ID": worker_id,
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
        "LOGGING_API_SERVICE_DESCRIPTOR": str(info.logging_endpoint),
        "CONTROL_API_SERVICE_DESCRIPTOR": str(info.control_endpoint),
    }
    if info.status_endpoint.url:
        variables["STATUS_API_SERVICE_DESCRIPTOR"] = str(info.status_endpoint)
    return variables


def connect_first() -> None:
    """Have Beam's worker check its versions and open its data connection before it makes a stage's functions.

    What is raised here reaches the command. Functions load PyTorch, and an engine waits three minutes for the connection, whether
    or not the worker lives; of one that breaks it knows at once.
    """
    from apache_beam.portability.api import beam_fn_api_pb2
    from apache_beam.runners.worker import bundle_processor

    from transforms.runtime.versions import check_versions

    beams = bundle_processor.BundleProcessor

    def connected(capabilities: Any, descriptor: Any, state: Any, channels: Any, *more: Any) -> Any:
        check_versions()
        for transform in descriptor.transforms.values():
            if transform.spec.urn in (
                bundle_processor.DATA_INPUT_URN,
                bundle_processor.DATA_OUTPUT_URN,
            ):
                channels.create_data_channel(
                    beam_fn_api_pb2.RemoteGrpcPort.FromString(transform.spec.payload)
                )
        return beams(capabilities, descriptor, state, channels, *more)

    bundle_processor.BundleProcessor = connected  # type: ignore[assignment, misc]


def work(worker_id: str, endpoint: str) -> None:
    """Be one worker until its engine ends it."""
    from apache_beam.runners.worker import sdk_worker_main

    connect_first()
    os.environ.update(worker_variables(worker_id, provisioned(worker_id, endpoint)))
    sdk_worker_main.main([])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one worker in a process of its own and watch it; returns its exit status."""
    return run_watched(partial(work, *arguments_of(sys.argv[1:] if argv is None else argv)))


if __name__ == "__main__":
    sys.exit(main())
