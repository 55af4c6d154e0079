"""KV memory, computing plane: the bytes of blocks."""
