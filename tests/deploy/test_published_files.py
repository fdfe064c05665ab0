"""What the repository publishes beside its code agrees with the code: error catalogue, service config, image recipe."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway import failures
from octavo import errors
from octavo.errors import Failure
from octavo.inference.v1 import inference_pb2, inference_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE_ROW = re.compile(r"^\| `([A-Z_]+)` \| .* \| ([A-Z_]+) \| (\d+) \| (?:`(\w+)`)? ?\|$", re.MULTILINE)


def catalogue() -> dict[str, tuple[str, int, str]]:
    """Reason -> (status code, HTTP status, OpenAI code or nothing), as docs/protocol.md says."""
    rows = CATALOGUE_ROW.findall((ROOT / "docs/protocol.md").read_text())
    return {reason: (code, int(status), openai_code) for reason, code, status, openai_code in rows}


def reasons_in_code() -> dict[str, grpc.StatusCode]:
    listed = {reason: code for code, reason in failures.STATUSES.values()}
    unavailable = {made.failure.reason: made.failure.code for made in (failures.loading("x"), failures.draining())}
    return listed | unavailable | failures._SCHEDULER_CODES


def test_every_reason_of_the_gateway_is_in_the_catalogue_with_its_codes() -> None:
    documented = catalogue()
    for reason, code in reasons_in_code().items():
        if reason == "TENANT_QUOTA":  # in prose: reserved
            continue
        form = errors.http_form(Failure(code=code, reason=reason, message=""))
        assert documented[reason][:2] == (code.name, form.status), reason
        assert form.code is None or documented[reason][2] in (form.code, ""), reason


def test_every_reason_with_an_http_form_of_its_own_is_documented() -> None:
    assert set(errors._HTTP_BY_REASON) - {"TENANT_QUOTA"} <= set(catalogue())


def service_config() -> str:
    return (ROOT / "protos/service_config.json").read_text()


def test_service_config_names_every_method_once_and_only_those() -> None:
    service = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
    named = [name["method"] for config in json.loads(service_config())["methodConfig"] for name in config["name"]]
    assert sorted(named) == sorted(method.name for method in service.methods)


class TwiceUnavailable(inference_pb2_grpc.InferenceServiceServicer):
    """Refuses the first two calls."""

    num_calls = 0

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Any
    ) -> inference_pb2.ListModelsResponse:
        self.num_calls += 1
        if self.num_calls <= 2:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return inference_pb2.ListModelsResponse()


async def test_a_client_with_the_service_config_tries_three_times() -> None:
    servicer = TwiceUnavailable()
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = [("grpc.service_config", service_config())]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        await inference_pb2_grpc.InferenceServiceStub(channel).ListModels(inference_pb2.ListModelsRequest())
    await server.stop(None)
    assert servicer.num_calls == 3


@pytest.mark.parametrize("document", ["README.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))])
def test_every_link_of_a_document_leads_to_a_file(document: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / document).read_text())
    missing = [link for link in links if not ((ROOT / document).parent / link).exists()]
    assert missing == []


def test_the_page_of_the_cpu_worker_says_what_each_source_owns() -> None:
    rows = re.findall(r"^\| (`[\w.`, ]+`) \| [^|]+ \|$", (ROOT / "docs/cpu-worker.md").read_text(), re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"[\w.]+\.(?:h|cpp)", row)}
    assert described == {path.name for path in (ROOT / "gpu_worker/cpu/src").iterdir()}


def test_the_images_have_the_kernels_but_no_compiler() -> None:
    stages = re.split(r"^FROM ", (ROOT / "deploy/Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    with_compiler = [stage.split()[:3] for stage in stages if "g++" in stage]
    assert with_compiler == [["base", "AS", "code"]]
    assert [stage for stage in stages if stage.startswith("code")] == []


def test_the_images_install_extras_that_exist() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    recipe = (ROOT / "deploy/Dockerfile").read_text()
    named = {extra for line in re.findall(r"requirements\.py ([\w ]+) >", recipe) for extra in line.split()}
    assert named
    assert named <= extras
