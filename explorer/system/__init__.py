"""Files, JSON and processes; input from outside the program is read within limits."""
