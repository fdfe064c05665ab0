"""A gateway by its public gRPC API."""

import time
from collections.abc import Sequence
from contextlib import aclosing

from octavo.cli.bench.figures import Sample
from octavo.cli.inference_client import Ask, InferenceClient
from octavo.cli.server_address import CannotAsk


class GrpcTarget:
    """One channel for all requests, as one client process has."""

    def __init__(self, client: InferenceClient, *, model: str | None) -> None:
        self._client = client
        self._model = model

    async def model(self) -> str:
        if self._model is None:
            self._model = await self._client.first_model()
        return self._model

    async def tokenize(self, text: str) -> list[int]:
        return await self._client.tokenize(text)

    async def generate(self, prompt: Sequence[int], num_tokens: int) -> Sample:
        ask = Ask(token_ids=prompt, model=await self.model(), max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        sample = Sample(sent_at=time.perf_counter(), num_prompt_tokens=len(prompt))
        try:
            async with aclosing(self._client.generate(ask)) as events:
                async for event in events:
                    if isinstance(event, str):
                        sample.arrived_at.append(time.perf_counter())
                    else:
                        sample.num_prompt_tokens = event.num_prompt_tokens
                        sample.num_output_tokens = event.num_output_tokens
                        sample.num_cached_tokens = event.num_cached_tokens
        except CannotAsk as failed:
            sample.error = str(failed)
        return sample
