"""Predictions that were frozen before their published results were looked up, scored.

__main__.py      `python -m benchmarks.blind`
score.py         docs/predict/blind.json beside what was published (published.json)
columns.py       docs/predict/blind-2.json and blind-3.json: today's values beside the frozen
interval.py      the interval of a value of blind-3.json, by blind-2.json and published-2.json
predicted.py     the number of a row that is a question, by the model of today
"""
