"""Tests of one module at a time."""
