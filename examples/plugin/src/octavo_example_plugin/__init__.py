"""An eviction policy and an attention backend for octavo."""
