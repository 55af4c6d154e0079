"""Quality: what an approximation costs. It gets what it compares from its caller."""
