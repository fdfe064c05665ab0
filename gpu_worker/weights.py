"""Loads a Llama-family model: reads each tensor once, fuses and packs it, and frees what it read.

Peak memory is the packed model plus the tensors of the layers in hand (two at a time). Progress goes to the log.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from gpu_worker.errors import MissingWeights
from gpu_worker.linear import Linear, linear
from gpu_worker.models import rope
from gpu_worker.models.llama import Layer, LlamaWeights
from gpu_worker.models.llama_config import LlamaConfig
from gpu_worker.weight_source import FREQUENCY_DIVISORS, WeightSource
from octavo import logs

NUM_READERS = 2
PROGRESS_EVERY_S = 2.0
ROTATED = ("q_proj", "k_proj")  # values carry no position

_log = logs.get(__name__)


def load(source: WeightSource, config: LlamaConfig, *, dtype: torch.dtype) -> LlamaWeights:
    """The whole model in `dtype`. Raises MissingWeights or UnreadableWeights."""
    return _Loader(source, config, dtype).load()


class _Loader:
    def __init__(self, source: WeightSource, config: LlamaConfig, dtype: torch.dtype) -> None:
        self._source = source
        self._config = config
        self._dtype = dtype
        self._num_bytes: list[int] = []  # one entry a packed weight; appended by several threads

    def load(self) -> LlamaWeights:
        config = self._config
        embedding = self._tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        is_tied = config.tie_word_embeddings or not self._source.has("lm_head.weight")
        head = embedding if is_tied else self._tensor("lm_head.weight", config.vocab_size, config.hidden_size)
        divisors = self._source.tensor(FREQUENCY_DIVISORS) if self._has(FREQUENCY_DIVISORS) else None
        layers = tuple(self._layers())
        return LlamaWeights(
            embedding=embedding,
            layers=layers,
            final_norm=self._tensor("model.norm.weight", config.hidden_size),
            head=self._pack(head),
            frequency_divisors=divisors,
            num_bytes=embedding.nbytes + sum(self._num_bytes),
        )

    def _has(self, name: str) -> bool:
        return self._source.has_adjacent_pairs and self._source.has(name)

    def _layers(self) -> Iterator[Layer]:
        """The layers in order; reading and expanding run in threads, because numpy and torch let them."""
        num_layers = self._config.num_hidden_layers
        logged_at = time.monotonic()
        with ThreadPoolExecutor(NUM_READERS, thread_name_prefix="octavo-weights") as readers:
            for index, layer in enumerate(readers.map(self._layer, range(num_layers)), start=1):
                if time.monotonic() - logged_at >= PROGRESS_EVERY_S:
                    logged_at = time.monotonic()
                    _log.info("weights_loading", percent=100 * index // num_layers, layers=f"{index}/{num_layers}")
                yield layer

    def _layer(self, index: int) -> Layer:
        config, prefix = self._config, f"model.layers.{index}"
        hidden = config.hidden_size
        return Layer(
            input_norm=self._tensor(f"{prefix}.input_layernorm.weight", hidden),
            qkv=self._qkv(f"{prefix}.self_attn"),
            output=self._fused(f"{prefix}.self_attn", {"o_proj": hidden}, config.num_attention_heads * config.head_dim),
            post_attention_norm=self._tensor(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=self._fused(
                f"{prefix}.mlp", {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}, hidden
            ),
            down=self._fused(f"{prefix}.mlp", {"down_proj": hidden}, config.intermediate_size),
        )

    def _qkv(self, prefix: str) -> Linear:
        """q, k and v in one product, with the pairs of q and k next to each other."""
        config = self._config
        parts, biases = [], []
        num_heads = {
            "q_proj": config.num_attention_heads,
            "k_proj": config.num_key_value_heads,
            "v_proj": config.num_key_value_heads,
        }
        for name, num in num_heads.items():
            weight, bias = self._projection(f"{prefix}.{name}", num * config.head_dim, config.hidden_size)
            if name in ROTATED and not self._source.has_adjacent_pairs:
                rows = rope.adjacent_rows(num, config.head_dim)
                weight, bias = weight[rows], None if bias is None else bias[rows]
            parts.append(weight)
            biases.append(bias)
        return self._pack(torch.cat(parts), _joined(biases))

    def _fused(self, prefix: str, num_rows: dict[str, int], num_columns: int) -> Linear:
        projections = [self._projection(f"{prefix}.{name}", rows, num_columns) for name, rows in num_rows.items()]
        return self._pack(torch.cat([weight for weight, _ in projections]), _joined([bias for _, bias in projections]))

    def _projection(self, name: str, num_rows: int, num_columns: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = self._tensor(f"{name}.weight", num_rows, num_columns)
        has_bias = self._source.has(f"{name}.bias")
        return weight, self._tensor(f"{name}.bias", num_rows) if has_bias else None

    def _tensor(self, name: str, *shape: int) -> torch.Tensor:
        try:
            tensor = self._source.tensor(name)
        except KeyError:
            raise MissingWeights(f"the weights lack {name}; does config.json belong to them?") from None
        if tuple(tensor.shape) != shape:
            raise MissingWeights(f"{name} is {tuple(tensor.shape)}, config.json says {shape}")
        return tensor.to(self._dtype)

    def _pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        self._num_bytes.append(weight.nbytes)
        return linear(weight, bias)


def _joined(biases: list[torch.Tensor | None]) -> torch.Tensor | None:
    present = [bias for bias in biases if bias is not None]
    assert len(present) in (0, len(biases)), "some of the fused projections have a bias and some have not"
    return torch.cat(present) if present else None
