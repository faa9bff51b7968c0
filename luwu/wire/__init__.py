"""The protocol's messages, their bytes, and the description all ranks must agree on."""
