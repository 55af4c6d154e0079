"""Eviction policies, one file each; build.py holds the table of their names."""
