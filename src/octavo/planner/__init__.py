"""What fits into a memory, worked out before anything is loaded. Never loads torch."""
