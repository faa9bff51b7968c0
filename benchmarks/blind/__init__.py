"""Predictions that were frozen before their published results were looked up, scored.

__main__.py      `python -m benchmarks.blind`
score.py         docs/predict/blind.json beside what was published (published.json)
columns.py       docs/predict/blind-2.json and blind-3.json: today's values beside the frozen
unseen.py        how far off all of them were, and the interval of an answer
fit.py           fits the numbers of the model to published results
"""
