"""Other libraries over LuWu; each file skips where its library is not installed."""
