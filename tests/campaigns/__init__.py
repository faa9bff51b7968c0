"""A small share of each campaign."""
