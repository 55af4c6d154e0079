"""The memory as it is shown: a mirror of the engine's, and streams of what changes in it."""
