"""Searches for the best configuration within a budget."""
