"""Inference: a job and its memory, prefill and decode, requests under load, and sockets."""
