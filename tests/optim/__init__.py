"""Optimizers as scripts use them."""
