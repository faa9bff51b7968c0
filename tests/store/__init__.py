"""The node's pages on disk."""
