"""Catalogue of machines, models and software, and how their performance scales."""
