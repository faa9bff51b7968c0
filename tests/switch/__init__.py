"""The switch: slots, lead of several nodes, caches, memory."""
