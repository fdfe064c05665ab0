"""The real demo model, in float32, gives what transformers gives on the weights as the GGUF keeps them."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gpu_worker.core.step import Sampling
from gpu_worker.gguf_file import GGUFFile
from gpu_worker.model_runner import ModelRunner
from gpu_worker.weight_source import expanded
from octavo import model_files
from octavo.model_files import ModelFiles
from tests.gpu_worker import tiny_models
from tests.gpu_worker.steps import new_request
from tests.gpu_worker.tiny_models import Driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CAPITAL = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2,
           198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]  # fmt: skip
PROMPTS = [CAPITAL, [504], CAPITAL * 8 + [504, 3575], [338 + 7 * i for i in range(200)]]


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return model_files.resolve(None)


@pytest.fixture(scope="module")
def oracle(files: ModelFiles) -> LlamaForCausalLM:
    """transformers over the dequantised weights, q and k put back into its order."""
    source = GGUFFile(files.weights)
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(files.config_dir))
    heads = {"q_proj": 9, "k_proj": 3}
    state = {}
    for name, parameter in model.state_dict().items():
        stored = "model.embed_tokens.weight" if name == "lm_head.weight" else name
        weight = torch.tensor(expanded(source.matrix(stored))).reshape(parameter.shape)
        if (module := name.split(".")[-2]) in heads:
            weight = weight.view(heads[module], -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        state[name] = weight
    model.load_state_dict(state)
    model.eval()
    return model


@pytest.fixture(scope="module")
def runner(files: ModelFiles) -> ModelRunner:
    return tiny_models.ready(files, num_blocks=512, max_num_batched_tokens=2048).runner


def greedy_with_cache(model: Any, prompt: list[int], num_tokens: int) -> tuple[list[int], torch.Tensor]:
    """Tokens and the log probabilities of the first of them."""
    with torch.inference_mode():
        answer = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=num_tokens,
            min_new_tokens=num_tokens, do_sample=False, eos_token_id=None, pad_token_id=0, return_dict_in_generate=True,
            output_logits=True,
        )  # fmt: skip
    return answer.sequences[0, len(prompt) :].tolist(), answer.logits[0][0].log_softmax(-1)


@pytest.mark.parametrize("index", range(len(PROMPTS)))
@pytest.mark.parametrize("budget", [16, 2048])
def test_tokens_and_logprobs_are_those_of_transformers(
    runner: ModelRunner, oracle: LlamaForCausalLM, index: int, budget: int
) -> None:
    prompt = PROMPTS[index]
    expected, logprobs = greedy_with_cache(oracle, prompt, 32)
    runner.state.reset()
    driver = Driver(runner)
    asking = new_request(1, prompt, list(range(1, 40)), sampling=Sampling(num_logprobs=5))
    driver.step({1: min(budget, len(prompt))}, asking)
    while len(driver.outputs[1]) < 32:
        driver.step(driver.longest_rows(budget))
    assert driver.outputs[1] == expected
    first = next(execution.logprobs[0] for execution in driver.executions if execution.logprobs)
    assert first.sampled.logprob == pytest.approx(float(logprobs[expected[0]]), abs=1e-3)
    assert [top.logprob for top in first.top] == pytest.approx(logprobs.topk(5).values.tolist(), abs=1e-3)


def test_sixteen_at_once_give_what_each_gives_alone(runner: ModelRunner, oracle: LlamaForCausalLM) -> None:
    prompts = [PROMPTS[3][i : i + 10 + 9 * i] for i in range(16)]
    runner.state.reset()
    driver = Driver(runner)
    requests = [new_request(h, prompt, list(range(1 + 16 * h, 17 + 16 * h))) for h, prompt in enumerate(prompts)]
    driver.step({handle: len(prompt) for handle, prompt in enumerate(prompts)}, *requests)
    for _ in range(15):
        driver.step(dict.fromkeys(range(16), 1))
    for handle in (0, 5, 15):
        assert driver.outputs[handle] == greedy_with_cache(oracle, prompts[handle], 16)[0]
