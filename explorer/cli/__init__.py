"""The command line: it parses, wires, prints and sets the exit code; the rest is the library's."""

import atexit
import gc
import os
import sys
import warnings

# Before anything imports NumPy. Its matrices are small here, and the threads of its BLAS wait for
# work by spinning: on 16 cores they took half of the 90 CPU seconds of a search from the compiler.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from explorer.cli.app import app


def main() -> None:
    """Entry point of the `explorer` script."""
    if not sys.warnoptions:  # what libraries warn their callers of is nothing to a user
        warnings.simplefilter("ignore")
    # As it ends, Python looks for unused objects once more, for 0.4 of the 4.7 s of a replay on two
    # cores. The system takes their memory back in any case, and nothing here is closed by that.
    atexit.register(gc.freeze)
    app(prog_name="explorer")


__all__ = ["app", "main"]
