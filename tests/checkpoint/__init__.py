"""What leaves a job and comes back: exports, snapshots, state dicts, attachments, data."""
