"""Runs a batch: inputs, model, sampler."""
