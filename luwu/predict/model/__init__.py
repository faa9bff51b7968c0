"""Layers, operators, exchanges and memory of a training job."""
