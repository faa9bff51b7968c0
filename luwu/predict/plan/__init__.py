"""Searches for the best configuration within a budget.

planner.py                  the best configuration of training
planner_space.py            the configurations that it searches
planner_inference.py        the best configuration of inference
planner_inference_space.py  the configurations that it searches
planner_budget.py           the budget, and the order of the list
search.py                   the search that both have in common
plan_text.py                a plan as a document and as a table for people
plan_columns.py             columns of the table
"""
