"""`python -m gpu_worker.cpu`: which of the C++ kernels this machine runs, or why none. `octavo doctor` asks it."""

from gpu_worker.cpu import library
from gpu_worker.cpu.library import LibraryMissing


def main() -> None:
    try:
        print(library.opened().isa)
    except LibraryMissing as missing:
        raise SystemExit(str(missing)) from None


if __name__ == "__main__":
    main()
