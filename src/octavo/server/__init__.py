"""The API that people already use, over HTTP."""
