"""LuWu on this machine, thread by thread."""
