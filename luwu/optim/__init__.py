"""The optimizers a training script constructs."""
