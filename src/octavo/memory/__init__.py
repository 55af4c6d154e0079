"""KV memory, deciding plane: which blocks hold what. Integers only, never torch."""
