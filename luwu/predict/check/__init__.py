"""The model held against published numbers."""
