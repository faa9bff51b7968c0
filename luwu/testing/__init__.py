"""Clusters for tests."""
