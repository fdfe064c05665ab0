"""What the gateway reads from a model's configuration files."""

import json
from pathlib import Path

import pytest

from gateway import model_profile
from gateway.core.submission import SamplingDefaults
from octavo.model_files import ModelFilesError


def write(folder: Path, name: str, **values: object) -> None:
    (folder / name).write_text(json.dumps(values))


def test_the_makers_sampling_is_the_default(tmp_path: Path):
    write(tmp_path, "config.json", max_position_embeddings=64, vocab_size=10, eos_token_id=1)
    write(tmp_path, "generation_config.json", eos_token_id=[1, 2], temperature=0.6, top_k=20, do_sample=True)
    profile = model_profile.load(tmp_path)
    assert (profile.max_model_len, profile.vocab_size, profile.eos_token_ids) == (64, 10, (1, 2))
    assert profile.defaults == SamplingDefaults(temperature=0.6, top_k=20)


def test_without_a_generation_config_the_configuration_names_the_end(tmp_path: Path):
    write(tmp_path, "config.json", max_position_embeddings=64, vocab_size=10, eos_token_id=3)
    profile = model_profile.load(tmp_path)
    assert (profile.eos_token_ids, profile.defaults) == ((3,), SamplingDefaults())


def test_what_is_missing_is_named(tmp_path: Path):
    write(tmp_path, "config.json", vocab_size=10)
    with pytest.raises(ModelFilesError, match=r"config.json has no max_position_embeddings"):
        model_profile.load(tmp_path)
