"""Small random models on disk, the oracle that runs them, and a worker's runner over them."""

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from gpu_worker.config import WorkerConfig
from gpu_worker.core.step import NewRequest
from gpu_worker.model_runner import Execution, ModelRunner
from gpu_worker.startup import Ready, start
from gpu_worker.startup_phases import Phases
from octavo import config
from octavo.model_files import ModelFiles
from tests.gpu_worker.steps import step

Model = TypeVar("Model", bound=PreTrainedModel)
VOCAB_SIZE = 512
SHAPES: dict[str, dict[str, Any]] = {
    "gqa_tied": {"num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "mha_untied": {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False},
    "one_kv_head_biased": {
        "num_attention_heads": 4, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True,
    },
    "wide_heads": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128},
    "llama3_rope": {
        "num_attention_heads": 6, "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        },
    },
    "linear_rope": {
        "num_attention_heads": 6, "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    },
}  # fmt: skip


def save_llama(folder: Path, shape: str) -> LlamaForCausalLM:
    """A random Llama of one of SHAPES, written to `folder`; returned as the oracle."""
    torch.manual_seed(sum(shape.encode()))
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=192, intermediate_size=320, num_hidden_layers=3,
        max_position_embeddings=512, rms_norm_eps=1e-5, initializer_range=0.2, **SHAPES[shape],
    )  # fmt: skip
    return _save(folder, LlamaForCausalLM(config))


def save_qwen2(folder: Path) -> Qwen2ForCausalLM:
    torch.manual_seed(2)
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE, hidden_size=192, intermediate_size=320, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    for layer in model.model.layers:  # made as zeros, which would test nothing
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            torch.nn.init.normal_(projection.bias)
    return _save(folder, model)


def _save(folder: Path, model: Model) -> Model:
    for parameter_name, parameter in model.named_parameters():
        if "norm" in parameter_name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps({"none": "token ids only"}))
    model.eval()
    return model


def load_oracle(folder: Path) -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder)
    model.eval()
    return model


def random_ids(seed: int, count: int) -> list[int]:
    """Token ids of a prompt; another seed is another prompt."""
    ids: list[int] = np.random.default_rng(seed).integers(0, VOCAB_SIZE, count).tolist()
    return ids


def files_of(folder: Path) -> ModelFiles:
    digest = hashlib.sha256((folder / "tokenizer.json").read_bytes()).digest()
    return ModelFiles(
        name=folder.name, weights=folder, config_dir=folder, weights_format="safetensors", tokenizer_digest=digest
    )


def ready(files: ModelFiles, **settings: Any) -> Ready:
    """A worker's runner over these files, in float32 and with a small pool unless said otherwise."""
    chosen = {"dtype": "float32", "num_blocks": 64, "num_threads": 1, "max_num_batched_tokens": 512, **settings}
    argv = [f"--{name.replace('_', '-')}={value}" for name, value in chosen.items()]
    return start(config.load(WorkerConfig, "WORKER", argv, {}), files, Phases())


class Driver:
    """Stands where the scheduler would, and keeps the outputs by request."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._seq = 0
        self._known: dict[int, int] = {}
        self._computed: dict[int, int] = {}
        self.outputs: dict[int, list[int]] = {}
        self.executions: list[Execution] = []

    def step(self, rows: dict[int, int], *new: NewRequest, **changes: Any) -> None:
        """One step; a request that reaches its last known token must have sampled."""
        self._seq += 1
        for request in new:
            self._known[request.handle] = len(request.token_ids)
            self._computed[request.handle] = request.num_computed_tokens
            self.outputs.setdefault(request.handle, [])
        execution = self._runner.execute(step(self._seq, rows, new_requests=new, **changes))
        self.executions.append(execution)
        tokens = iter(execution.token_ids)
        for handle, num_tokens in rows.items():
            self._computed[handle] += num_tokens
            if self._computed[handle] == self._known[handle]:
                self.outputs[handle].append(next(tokens))
                self._known[handle] += 1
        assert next(tokens, None) is None, "more tokens than sampling rows"

    def longest_rows(self, limit: int) -> dict[int, int]:
        """Every request, as far as it can go within `limit` tokens."""
        return {handle: min(limit, known - self._computed[handle]) for handle, known in self._known.items()}


def greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """What transformers generates, without its generation settings."""
    token_ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(num_tokens):
            token_ids = torch.cat((token_ids, model(token_ids).logits[:, -1:].argmax(-1)), -1)
    return token_ids[0, len(prompt) :].tolist()
