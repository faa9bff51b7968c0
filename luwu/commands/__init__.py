"""The `luwu` command: one file per command.

main.py              runs a command, turns errors into a message and an exit code
table.py             the commands, by what they are for
form.py              the form of a command: click's, with keys as flags
outcome.py           files of a run: what was asked for, how it ended
compare.py           `luwu compare`
run.py               `luwu run`
up.py                `luwu up`: switch and node
up_roles.py          what it starts: node, switch or both
status.py            `luwu status`
estimate.py          `luwu estimate`
report.py            `luwu report`
trace.py             `luwu trace`
export.py            `luwu export`
import_.py           `luwu import`
verify.py            `luwu verify`
snapshot.py          `luwu snapshot`
refill.py            `luwu refill`
keys.py              `luwu keys`
explain.py           `luwu explain`
config.py            `luwu config`
plan.py              `luwu plan`
predict.py           `luwu predict`: `step`, `sweep`, `validate`, `catalogue`, `init`
"""
