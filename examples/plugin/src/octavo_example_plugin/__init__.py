"""An eviction policy, an attention backend and a KV codec for octavo."""
