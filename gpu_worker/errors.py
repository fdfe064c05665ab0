"""Why a worker cannot start; each message says what was asked, what was there, and what to do."""


class CannotStart(Exception):
    """The process ends with this message."""


class UnsupportedModel(CannotStart):
    """A model that this worker cannot run."""


class MissingWeights(CannotStart):
    """The files lack a tensor that the configuration asks for, or hold it in another shape."""


class UnreadableWeights(CannotStart):
    """A weight file is damaged."""


class NotEnoughMemory(CannotStart):
    """The K/V of one sequence of max_model_len does not fit."""
