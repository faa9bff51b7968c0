"""What the cores of worker, switch and node are made of: pure, without I/O."""
