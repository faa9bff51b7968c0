"""Costs of the parts of LuWu on this machine, and threads that share its processors."""
