"""Topologies, what exchanges have of them, and what they cost."""
