"""Questions from files, and their answers, swept.

keys.py              the keys of all questions, of files and of the command line
question.py          a question as users write it, made into what is predicted
cost.py              `[cost]`: what is bought or rented
answer.py            the answer to a question: time, its parts, the bottleneck
answer_training.py   the answer to a question of training
answer_inference.py  the answer to a question of inference
answer_parts.py      what all answers have in common
error_bar.py         the error of an answer, and what was never fitted
fitting.py           does it fit the memory, and what is the nearest that does
whole_training.py    steps, days and dollars of a whole training
sweep.py             a question over values of its keys
"""
