"""The `luwu` command: one file per verb.

main.py              finds the verb, runs it, turns errors into a message and an exit code
flags.py             the command line of a verb
outcome.py           files of a run: what was asked for, how it ended
compare.py           `luwu compare`
run.py               `luwu run`
up.py                `luwu up`: switch and node
up_node.py           its optimizer node alone
up_in_tree.py        its one switch of a tree
status.py            `luwu status`
doctor.py            `luwu doctor`
estimate.py          `luwu estimate`
report.py            `luwu report`
trace.py             `luwu trace`
export.py            `luwu export`
import_.py           `luwu import`
verify.py            `luwu verify`
snapshot.py          `luwu snapshot`
keys.py              `luwu keys`
chaos.py             `luwu chaos`
explain.py           `luwu explain`
config.py            `luwu config`
plan.py              `luwu plan`
predict.py           `luwu predict`: `step`, `compare`, `validate`
predict_flows.py     its `flows`
predict_machine.py   its `validate --machine`
predict_sweep.py     its `sweep`
predict_timeline.py  its `timeline`
predict_pictures.py  timelines and plots as files
"""
