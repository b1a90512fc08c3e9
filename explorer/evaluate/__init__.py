"""Problem and config to outcome: emit, compile, verify, time; or look it up in a recording."""
