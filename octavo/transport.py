"""What both ends of every gRPC connection agree on: how big a message may be and how a dead peer is noticed."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # both directions, both ends; gRPC's own default of 4 MiB is too small

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
