"""Measurements that can be repeated: what memory holds, and what load it sustains."""
