"""`luwu compare`: runs one arm after the other, and shows their results side by side."""
