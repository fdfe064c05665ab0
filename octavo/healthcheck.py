"""Asks one process whether it serves, by grpc.health.v1: `python -m octavo.healthcheck ADDRESS`.

Made for container health checks: exit 0 is SERVING, 1 anything else, with one line that says what was found.
"""

import sys
from typing import cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 2.0  # below the time limit of the container's own check


def status_of(address: str) -> str:
    """The overall status that the process at "host:port" or "unix:/path" reports, or why there is none."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            response = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            call = cast(grpc.Call, error)  # what a stub raises is both
            return f"{call.code().name}: {call.details()}"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m octavo.healthcheck ADDRESS", file=sys.stderr)
        return 2
    status = status_of(arguments[0])
    print(f"{arguments[0]} {status}")
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
