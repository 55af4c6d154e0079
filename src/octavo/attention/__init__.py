"""Attention over paged KV, one file per backend."""
