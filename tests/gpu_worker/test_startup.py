"""Who computes a model, in which numbers, and what the worker says of it."""

import logging
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.errors import NotEnoughMemory, UnsupportedModel
from gpu_worker.identity import Identity
from octavo.model_files import ModelFiles
from tests.gpu_worker import tiny_models
from tests.gpu_worker.test_weights import write_gguf

SMALL: dict[str, Any] = {"num_blocks": 40, "num_threads": 1}


@pytest.fixture(scope="module")
def quantised(gqa_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    path = tmp_path_factory.mktemp("quantised") / "tiny.gguf"
    write_gguf(path, tiny_models.load_oracle(gqa_folder))
    return ModelFiles(name="tiny", weights=path, config_dir=gqa_folder, weights_format="gguf", tokenizer_digest=b"t")


@pytest.fixture
def plain(gqa_folder: Path) -> ModelFiles:
    return tiny_models.files_of(gqa_folder)


def identity(files: ModelFiles, **settings: Any) -> Identity:
    return tiny_models.ready(files, **(SMALL | settings)).identity


def test_auto_runs_a_quantised_file_as_it_is_stored_by_the_kernels(quantised: ModelFiles) -> None:
    about = identity(quantised, dtype="auto")
    assert about.dtype == "stored"
    assert about.attention_backend.startswith("cpu_")
    assert about.kv_cache_bytes == 40 * 3 * 2 * 2 * 16 * 32 * 2
    num_products = 3 * (2 * 192 * 192 + 2 * 64 * 192 + 3 * 320 * 192)
    assert about.weight_bytes == num_products * 20 // 32 + 512 * 192 * 34 // 32  # Q4_1, and Q8_0 once for both ends


def test_auto_runs_other_files_in_bfloat16_by_the_kernels(plain: ModelFiles) -> None:
    about = identity(plain, dtype="auto")
    assert (about.dtype, about.fingerprint.kv_dtype) == ("bfloat16", "bfloat16")
    assert about.attention_backend.startswith("cpu_")


def test_no_two_kinds_of_numbers_and_no_two_layouts_share_keys_and_values(quantised: ModelFiles) -> None:
    ways: list[dict[str, Any]] = [
        {"dtype": "stored"},
        {"dtype": "bfloat16"},
        {"dtype": "float32"},
        {"dtype": "bfloat16", "block_size": 8},  # which torch takes
    ]
    told_apart = {
        (about.fingerprint.model_digest, about.fingerprint.kv_dtype, about.fingerprint.kv_layout)
        for about in (identity(quantised, **way) for way in ways)
    }
    assert len(told_apart) == len(ways)


def test_torch_serves_what_the_kernels_refuse_and_the_log_says_why(
    plain: ModelFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    about = identity(plain, dtype="bfloat16", block_size=8)
    assert about.attention_backend == "torch_batched"
    (loaded,) = [vars(record)["octavo_fields"] for record in caplog.records if record.message == "model_loaded"]
    assert loaded["torch_because"] == "block_size is 8, not a multiple of 16"


def test_torch_serves_without_the_library(
    quantised: ModelFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("gpu_worker.cpu.library.load", lambda: None)  # as where there was no compiler
    assert identity(quantised, dtype="auto").attention_backend == "torch_batched"
    (loaded,) = [vars(record)["octavo_fields"] for record in caplog.records if record.message == "model_loaded"]
    assert loaded["torch_because"] == "the C++ library is missing"
    with pytest.raises(UnsupportedModel, match="--dtype stored cannot be: the C\\+\\+ library is missing"):
        identity(quantised, dtype="stored")


def test_a_file_that_is_not_quantised_cannot_run_as_stored(plain: ModelFiles) -> None:
    with pytest.raises(UnsupportedModel, match="the weights of this model are not quantised; use auto or bfloat16"):
        identity(plain, dtype="stored")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_pool_that_cannot_be_is_refused_whoever_computes(plain: ModelFiles, dtype: str) -> None:
    with pytest.raises(NotEnoughMemory, match="--num-blocks 100000000 needs"):
        identity(plain, dtype=dtype, num_blocks=100_000_000)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "settings", [{"max_model_len": 2}, {"max_num_batched_tokens": 1}, {"num_blocks": 2}, {"num_threads": 7}], ids=str
)
def test_the_smallest_settings_start_whoever_computes(plain: ModelFiles, dtype: str, settings: dict[str, int]) -> None:
    about = identity(plain, dtype=dtype, **settings)
    assert {name: getattr(about, name) for name in settings if name != "num_threads"} == {
        name: value for name, value in settings.items() if name != "num_threads"
    }
