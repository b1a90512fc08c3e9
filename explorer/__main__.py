"""`python -m explorer` is `explorer`."""

from explorer.cli import main

main()
