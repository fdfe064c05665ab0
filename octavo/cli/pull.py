"""`octavo pull`: fetches a model and prepares its tokenizer, so that no server has to at its start."""

import sys
from collections.abc import Sequence

from octavo import model_files
from octavo.cli.arguments import Parser


def run(argv: Sequence[str]) -> int:
    """Print where the model lies; 1 if it cannot be had."""
    parser = Parser("pull", "Fetch a model into the cache folder and prepare it for serving.")
    parser.add_argument(
        "MODEL",
        nargs="?",
        help="a hub id, a folder, a GGUF file or gemma-3-270m; the demo model if left out",
    )
    arguments = parser.read(argv)
    try:
        files = model_files.resolve(arguments.MODEL)
    except model_files.ModelFilesError as refused:
        print(f"octavo pull: {refused}", file=sys.stderr)
        return 1
    print(f"{files.name} is here: {files.weights} ({files.weights_format}), configuration in {files.config_dir}")
    return 0
