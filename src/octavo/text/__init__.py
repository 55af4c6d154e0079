"""Between text and token ids; knows nothing else of octavo."""
