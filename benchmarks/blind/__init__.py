"""Predictions that were frozen before their published results were looked up, scored.

__main__.py      `python -m benchmarks.blind`
score.py         docs/predict/blind.json beside what was published (published.json)
columns.py       docs/predict/blind-2.json, whose results are not looked up: today's values beside
predicted.py     the number of a row that is a question, by the model of today
"""
