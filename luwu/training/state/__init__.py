"""State beyond one step: first weights, and what only workers hold.

first_weights.py   who gives first weights, how they are made, when they are sent
attached.py        what only workers hold, kept with every step
"""
