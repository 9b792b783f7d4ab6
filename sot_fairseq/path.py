"""``python -m sot_fairseq.path`` prints the folder to give to fairseq's ``--user-dir``."""

from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Print this package's folder."""
    print(Path(__file__).resolve().parent)  # noqa: T201


if __name__ == "__main__":
    main()
