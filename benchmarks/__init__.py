"""Benchmarks; their smoke sizes run in the test suite."""
