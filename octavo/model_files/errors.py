"""The errors of this package: a model that cannot be used, told to whoever starts the process."""


class ModelFilesError(Exception):
    """A model cannot be found, fetched or read; the message names what was tried and what to do."""


class NotHere(ModelFilesError):
    """The model is not on this machine, and nobody was asked for it: fetching it may help."""
