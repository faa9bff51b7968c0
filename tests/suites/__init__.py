"""Conformance suites: one suite, every implementation of an interface."""
