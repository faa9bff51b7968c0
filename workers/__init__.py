"""Programs that train: one script for every arm, and the built-in GPT and its data."""
