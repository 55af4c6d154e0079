"""What a server counts, and how it says so to Prometheus."""
