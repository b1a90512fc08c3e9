"""Whether a result can be written, asked before it is measured."""

from pathlib import Path

from explorer.errors import InvalidInput


def check_writable(path: Path, option: str = "--output") -> None:
    """Make the folder of `path`; raises InvalidInput naming the option where it is not writable."""
    probe = path.with_name(f".{path.name}.probe")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror}; name another {option}"
        ) from None
