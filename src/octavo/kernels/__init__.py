"""Arithmetic on tensors; knows nothing of octavo."""
