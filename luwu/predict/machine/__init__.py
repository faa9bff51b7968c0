"""What the parts of LuWu take on this machine, and threads that share its processors."""
