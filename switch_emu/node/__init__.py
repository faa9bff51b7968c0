"""The optimizer node: owns pages, updates them, publishes weights."""
