"""Other libraries' training loops over LuWu; each needs its library, which nothing else imports."""
