"""A step of each system: replicated, ZeRO, offload, in-network, 3D-parallel training."""
