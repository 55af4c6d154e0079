"""Fakes, builders and conformance suites, for our tests and for packages that plug in."""
