"""Moves messages between processes; the only package that imports zmq."""
