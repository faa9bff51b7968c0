"""Inference: prefill, decode and sockets."""
