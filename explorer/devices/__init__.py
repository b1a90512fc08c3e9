"""Devices evaluate a kernel: on a GPU, from a recording, or by emulation."""
