"""What every Octavo process shares: configuration, logs, tracing, metrics, gRPC server and client, errors.

Knows how to be a process, nothing of blocks, tokens or requests. The command line is `octavo.cli`; the code in
`octavo.<area>.v1` is generated from `protos/`.
"""

__version__ = "0.1.0"
