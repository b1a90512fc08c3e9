"""Templates to source: a variant is what a config emits for a problem."""
