"""Model files, specs and the decoder."""
