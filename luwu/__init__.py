"""LuWu: an in-network optimizer in software."""
