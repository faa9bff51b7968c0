"""The SmartNIC of a worker: push, pull and wait."""
