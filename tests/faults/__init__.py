"""Tests that kill and break real processes."""
