"""gRPC server reflection under both of its names, v1alpha and v1, so that every client tool finds the services."""

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

V1 = "grpc.reflection.v1.ServerReflection"


def enable_reflection(server: grpc.aio.Server, service_names: Sequence[str]) -> None:
    """List `service_names`, health and reflection itself; the messages of v1 are those of v1alpha."""
    health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    names = (*service_names, health, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    servicer = ReflectionServicer(service_names=names)
    info = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": info})])
