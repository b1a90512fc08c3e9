"""Source to kernel by NVRTC, cached on disk. Needs neither GPU nor driver."""
