"""Files, JSON, processes and imports; input from outside the program is read within limits."""
