"""Floors: what this machine can do at most, measured."""
