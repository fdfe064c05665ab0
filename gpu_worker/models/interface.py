"""What the runner asks of a model: one forward pass over the K/V memory that the model was made with."""

from collections.abc import Callable
from typing import Protocol

import torch

from gpu_worker.core.input_batch import InputBatch

Forward = Callable[[], torch.Tensor]


class Model(Protocol):
    """A loaded model; stateless but for its K/V memory."""

    def prepare(self, batch: InputBatch) -> Forward:
        """Plan the step; the forward pass then stores the K/V of all its tokens and gives logits [S, V].

        The logits are the caller's until the next forward pass, and may be written to.
        """
        ...
