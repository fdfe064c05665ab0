"""Finds a model's files on disk, and fetches and converts them once where needed.

`resolve` takes what people write (nothing, a folder, a GGUF file, a name, a hub id) and returns `ModelFiles`: where
the weights are, and a folder with Hugging Face style configuration and tokenizer. `fetch` downloads, `packaged` lists
the models that are packages. `convert` turns the metadata of a GGUF (`gguf_header`) into such a folder (`gguf_config`,
`gguf_tokenizer`). Neither torch nor transformers is needed.
"""

from octavo.model_files.errors import ModelFilesError, NotHere
from octavo.model_files.resolve import DEMO_MODEL_NAME, ModelFiles, name_of, resolve

__all__ = ["DEMO_MODEL_NAME", "ModelFiles", "ModelFilesError", "NotHere", "name_of", "resolve"]
