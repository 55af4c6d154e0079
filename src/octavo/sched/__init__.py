"""Who computes what in the next step. Integers only, never torch."""
