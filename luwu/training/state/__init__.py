"""What a job begins with and keeps beside its weights: first values, attached state, statistics."""
