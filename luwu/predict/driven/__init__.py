"""The cores of LuWu driven in virtual time, with costs in place of work: see driven.py."""
