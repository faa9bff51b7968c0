"""Questions from files, and their answers, swept.

keys.py            the keys of all questions, of files and of the command line
question.py        a question as users write it, made into what is predicted
cost.py            `[cost]`: what is rented
answer.py          the answer to a question: time, its parts, the bottleneck, memory, costs
interval.py        how far off an answer may be
sweep.py           a question over values of its keys
configurations.py  all those of a question that leaves degrees out
"""
