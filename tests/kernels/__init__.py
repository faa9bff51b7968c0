"""Arithmetic of node and switch: compiled or not, the same bits."""
