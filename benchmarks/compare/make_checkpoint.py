"""Turns a GGUF file into Hugging Face folders for peers that read nothing else: OUT-fp32 and OUT-bf16.

    python benchmarks/compare/make_checkpoint.py FILE.gguf OUT

transformers does not save a model that it has loaded from GGUF, so the weights pass through a fresh one.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

OF_THE_GGUF = ("quantization_config", "_pre_quantization_dtype")


def read_model(path: Path) -> Any:
    """The weights in float32, in a model that knows nothing of the file."""
    read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    for name in OF_THE_GGUF:
        if hasattr(read.config, name):
            delattr(read.config, name)
    model = AutoModelForCausalLM.from_config(read.config)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    ends = {name: getattr(read.config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**ends)
    return model


def read_tokenizer(path: Path) -> Any:
    """transformers forgets that SmolLM splits numbers into digits first."""
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    field = GGUFReader(path).fields.get("tokenizer.ggml.pre")
    if field is not None and bytes(field.parts[-1]).decode() == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    return tokenizer


def write(model: Any, tokenizer: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config_file = folder / "config.json"
    config = json.loads(config_file.read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]  # where readers older than transformers 5 look
    config_file.write_text(json.dumps(config, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", help="beginning of the folders' names")
    arguments = parser.parse_args()
    model, tokenizer = read_model(arguments.gguf), read_tokenizer(arguments.gguf)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        model.to(dtype)
        model.config.dtype = dtype
        write(model, tokenizer, Path(f"{arguments.out}-{name}"))


if __name__ == "__main__":
    main()
