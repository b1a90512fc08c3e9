"""The device `emulated`: checks kernels of softmax problems on the PTX emulator, without a GPU."""
