"""The loop: plan, submit, collect, apply."""
