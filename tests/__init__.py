"""The tests of LuWu."""
