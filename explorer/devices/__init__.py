"""What evaluates kernels: a GPU, a recording, an emulator."""
