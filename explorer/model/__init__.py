"""The vocabulary: problems, configs, element types, GPUs, outcomes and errors, as plain data."""
