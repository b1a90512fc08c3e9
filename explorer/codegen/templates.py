"""Where the templates are, and a digest of their text."""

import hashlib
from functools import cache
from pathlib import Path


def template_dir() -> Path:
    """The folder of templates: in the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_data" / "templates"
    return installed if installed.is_dir() else package.parent / "templates"


_NOT_RUN_BY_GPU = {"header", "host"}
"""Folders of what is only compiled for the host, or is a comment."""


@cache
def template_digest() -> str:
    """Twelve hexadecimal digits over the templates of what the GPU runs: names and texts."""
    digest = hashlib.sha256()
    root = template_dir()
    for path in sorted(p for p in root.rglob("*.j2") if p.parent.name not in _NOT_RUN_BY_GPU):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
