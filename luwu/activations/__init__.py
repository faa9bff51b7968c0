"""Activations on disk between forward and backward; nothing of the network."""
