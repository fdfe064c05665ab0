"""The models that are served."""

from tests.fakes.generator import FakeGenerator
from tests.gateway.openai.servers import client

MODEL = {"object": "model", "created": 7, "owned_by": "octavo", "root": "m", "parent": None, "max_model_len": 64}


async def test_every_name_is_listed_the_first_one_first():
    async with client(FakeGenerator()) as http:
        listed = (await http.get("/v1/models")).json()
    assert listed == {"object": "list", "data": [{"id": "m"} | MODEL, {"id": "alias"} | MODEL]}


async def test_one_model_by_any_of_its_names():
    async with client(FakeGenerator()) as http:
        assert (await http.get("/v1/models/alias")).json() == {"id": "alias"} | MODEL


async def test_an_unknown_name_is_404_also_with_slashes():
    async with client(FakeGenerator()) as http:
        response = await http.get("/v1/models/org/name")
    assert response.status_code == 404
    assert "'org/name'" in response.json()["error"]["message"]
