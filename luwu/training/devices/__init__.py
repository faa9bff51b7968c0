"""What differs between CPU and GPU workers: buffers, streams, copies."""
