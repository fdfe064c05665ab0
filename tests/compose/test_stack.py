"""The containers on a real engine, from build to an orderly stop: `make test-compose`.

The tests share one stack and run in this order: the last one stops it.
"""

import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.compose.stack import REPOSITORY, Stack, inspect, run

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1200)]

OURS = ("gateway", "gpu_worker", "kvcache", "scheduler")
MB = 1_000_000
READ_ALL_METRICS = """
import urllib.request
for address in ("gateway:8000", "scheduler:51052", "kvcache:51053", "gpu_worker:51054"):
    print(urllib.request.urlopen(f"http://{address}/metrics", timeout=5).read().decode())
"""
STATUS = ("octavo", "status", "--json", "--scheduler-addr", "scheduler:50052")


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    stack = Stack.on_free_ports()
    try:
        stack.compose("up", "--build", "--detach", "--wait", "--wait-timeout", "600")
        yield stack
    finally:
        if request.session.testsfailed:
            terminal: Any = request.config.pluginmanager.get_plugin("terminalreporter")
            terminal.write(stack.compose("logs", "--no-color", "--tail", "50"))
        stack.compose("down", "--volumes", "--timeout", "60")


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{stack.http_port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.mark.parametrize("profile", [[], ["--env-file", "deploy/observability.env"]], ids=["plain", "observability"])
@pytest.mark.parametrize("files", [["compose.yaml"], ["compose.yaml", "compose.gpu.yaml"]], ids=["cpu", "gpu"])
def test_every_combination_of_files_is_valid(files: list[str], profile: list[str]) -> None:
    named = [part for file in files for part in ("--file", file)]
    run("docker", "compose", *profile, *named, "config", "--quiet")


def test_every_service_is_up_and_healthy(stack: Stack) -> None:
    health = {container["Service"]: container["Health"] for container in stack.services() if container["Health"]}
    assert health == dict.fromkeys((*OURS, "redis"), "healthy")


def test_only_the_gateway_is_published_on_the_loopback(stack: Stack) -> None:
    published = {
        (container["Service"], port["URL"], port["PublishedPort"], port["TargetPort"])
        for container in stack.services()
        for port in container["Publishers"] or ()
        if port["PublishedPort"]
    }
    assert published == {
        ("gateway", "127.0.0.1", stack.http_port, 8000),
        ("gateway", "127.0.0.1", stack.grpc_port, 50051),
    }


def test_our_containers_have_no_privileges(stack: Stack) -> None:
    for container in inspect(*(container["ID"] for container in stack.services() if container["Service"] in OURS)):
        host = container["HostConfig"]
        assert container["Config"]["User"] == "10001:10001"
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]


def test_images_without_torch_are_small(stack: Stack) -> None:
    images = ("python:3.11-slim", "octavo-scheduler", "octavo-kvcache", "octavo-gateway")
    base, scheduler, kvcache, gateway = (image["Size"] for image in inspect(*images))
    assert scheduler - base < 80 * MB
    assert kvcache - base < 80 * MB
    assert gateway - base < 400 * MB


def test_a_chat_streams_over_http(client: openai.OpenAI) -> None:
    (model, *_) = client.models.list()
    stream = client.chat.completions.create(
        model=model.id,
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices).strip()
    assert choices[-1].finish_reason in ("stop", "length")
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens <= 12


def test_grpcurl_finds_the_service_by_reflection_and_gets_text(stack: Stack) -> None:
    grpcurl = str(Path(sys.executable).with_name("grpcurl"))
    address = f"127.0.0.1:{stack.grpc_port}"
    assert "octavo.inference.v1.InferenceService" in run(grpcurl, "-plaintext", address, "list").split()
    body = json.dumps(
        {"request": {"text": "The capital of France is", "stopping": {"max_tokens": 6, "ignore_eos": True}}}
    )
    method = "octavo.inference.v1.InferenceService/GenerateOnce"
    answer = json.loads(run(grpcurl, "-plaintext", "-d", body, address, method))
    assert answer["choices"][0]["text"]
    assert answer["finished"]["usage"]["completion_tokens"] == 6


def test_a_second_worker_joins_by_scale_alone_and_both_serve(stack: Stack, client: openai.OpenAI) -> None:
    stack.compose("up", "--detach", "--wait", "--no-recreate", "--scale", "gpu_worker=2")
    (model, *_) = client.models.list()

    def ask(number: int) -> int:
        prompt = f"Story number {number}: " + "once upon a time " * 20
        answer = client.completions.create(
            model=model.id, prompt=prompt, max_tokens=24, extra_body={"ignore_eos": True}
        )
        assert answer.usage is not None
        return answer.usage.completion_tokens

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [24] * 8
    workers = json.loads(stack.compose("exec", "-T", "gateway", *STATUS))["scheduler"]["workers"]
    assert len({worker["worker_id"] for worker in workers}) == 2
    assert all(worker["num_output_tokens"] > 0 for worker in workers), workers


def test_every_metric_of_the_dashboard_is_shown_by_a_service(stack: Stack) -> None:
    dashboard = json.loads((REPOSITORY / "deploy/grafana/dashboards/octavo.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    wanted = {name for expression in expressions for name in re.findall(r"\b(?:vllm:|octavo_)\w+", expression)}
    shown = stack.compose("exec", "-T", "gateway", "python", "-c", READ_ALL_METRICS)
    assert wanted
    assert wanted <= set(re.findall(r"^[\w:]+", shown, re.MULTILINE))


def test_stopping_lets_a_stream_finish_and_every_service_exits_with_zero(stack: Stack, client: openai.OpenAI) -> None:
    (model, *_) = client.models.list()
    stream = client.completions.create(
        model=model.id, prompt="Once upon a time", max_tokens=100, stream=True, extra_body={"ignore_eos": True}
    )
    with ThreadPoolExecutor(1) as pool:
        first = next(stream)
        stopping = pool.submit(stack.compose, "stop")
        chunks = [first, *stream]
        stopping.result()
    assert chunks[-1].choices[0].finish_reason == "length"
    exits = {(container["Service"], container["ExitCode"]) for container in stack.services()}
    assert exits == {(service, 0) for service in (*OURS, "redis", "pull")}
