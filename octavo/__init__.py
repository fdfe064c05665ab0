"""What every Octavo process shares: configuration, logs, tracing, metrics, gRPC server and client, errors.

Knows how to be a process, nothing of blocks, tokens or requests. Where to look:

- Settings: `config` fills a dataclass from `flags` and `environment`; `config_fields` and `config_values` describe it,
  `process_config` has what all services have.
- Serving: `server` (start to orderly end), `shutdown` (signals), `health`, `healthcheck` (asks from outside),
  `reflection`, `interceptors` (around every RPC), `listen_address`, `port_sharing` (two processes, one port),
  `transport` (what both ends agree on).
- Calling: `client` (channels, retries), `connection` (replaced when it is half open), `columns` (packed numbers in
  messages).
- Judging others: `loop_clock` (time in which this process ran), `message_count` (none lost, doubled or swapped unseen).
- Saying: `errors` (one model for gRPC, HTTP and OpenAI), `logs`, `metrics`, `telemetry` (spans), `span_export` (where
  they go), `trace_context`.

`octavo.cli` is the command line, `octavo.model_files` finds and fetches models, the code in `octavo.<area>.v1` is
generated from `protos/`.
"""

__version__ = "0.1.0"
