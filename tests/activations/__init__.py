"""Activations on disk: `luwu.offload_activations`."""
