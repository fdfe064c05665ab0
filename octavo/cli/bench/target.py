"""What a server looks like to the bench, whatever protocol it speaks."""

from collections.abc import Sequence
from typing import Protocol

from octavo.cli.bench.figures import Sample

# Words whose tokens prompts are drawn from when no range of ids is given: any tokenizer has ids for them.
TEXT = (
    "A server that answers many people at once must decide who goes first, how much memory each of them may "
    "hold, and what can be shared. The river ran past the old mill, under three bridges of stone, and out into "
    "the grey morning sea. In 1905 he wrote four papers; none was longer than thirty pages, yet physics had "
    "changed by December. Add two eggs, a pinch of salt, some flour and warm milk, then stir until smooth. def "
    "area(width, height): return width * height. Prices rose by 7% in March while wages, which had fallen "
    "since autumn, stood still. Why do cats purr? Nobody knows for certain; perhaps it heals bones, perhaps it "
    "simply pleases them. The committee will meet again on Thursday at nine to vote about the new library, its "
    "garden, and the long argument over chairs."
)


class Answers(Protocol):
    """What takes a prompt and answers. A failed request is a Sample with an error."""

    async def generate(self, prompt: Sequence[int], num_tokens: int) -> Sample: ...


class Target(Answers, Protocol):
    """One server. Raises CannotAsk if it is not there."""

    async def model(self) -> str: ...

    async def tokenize(self, text: str) -> list[int]: ...
