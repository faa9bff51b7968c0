"""Searches for the best configuration within a budget.

planner.py                  the best configuration of training
planner_space.py            the configurations that it searches
planner_inference.py        the best configuration of inference
planner_inference_space.py  the configurations that it searches
planner_budget.py           the budget, and the order of the list
plan_text.py                a plan of training as a document and as text
plan_inference_text.py      a plan of inference as a document and as text
plan_columns.py             columns that both texts have
"""
