"""`luwu compare`: one arm after the other, and what they say side by side."""
