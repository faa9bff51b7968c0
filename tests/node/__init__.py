"""The optimizer node: its core, pages and memory."""
