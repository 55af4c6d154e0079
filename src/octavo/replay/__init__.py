"""What a cache would have kept of recorded traffic: no model, no clock of its own."""
