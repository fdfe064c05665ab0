"""What every Octavo process shares: configuration, logs, tracing, metrics, gRPC server and client, errors.

Knows how to be a process, nothing of blocks, tokens or requests. Where to look:

- Settings: `config` fills a dataclass from `flags` and `environment`; `config_fields` and `config_values` describe it.
- Serving: `server` (start to orderly end), `shutdown` (signals), `health`, `healthcheck` (asks from outside),
  `reflection`, `interceptors` (around every RPC), `listen_address`, `transport` (what both ends agree on).
- Calling: `client` (channels, retries), `columns` (packed numbers in messages).
- Saying: `errors` (one model for gRPC, HTTP and OpenAI), `logs`, `telemetry` and `trace_context`, `metrics`.

`octavo.cli` is the command line, `octavo.model_files` finds and fetches models, the code in `octavo.<area>.v1` is
generated from `protos/`.
"""

__version__ = "0.1.0"
