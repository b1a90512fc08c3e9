"""Where the templates are, and a digest of their text."""

import hashlib
from functools import cache
from pathlib import Path


def template_dir() -> Path:
    """The folder of templates: in the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_data" / "templates"
    return installed if installed.is_dir() else package.parent / "templates"


@cache
def template_digest() -> str:
    """Twelve hexadecimal digits over the names and texts of all templates."""
    digest = hashlib.sha256()
    root = template_dir()
    for path in sorted(root.rglob("*.j2")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
