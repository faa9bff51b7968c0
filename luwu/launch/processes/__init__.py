"""Processes of a run: started, watched, stopped; their directory and their output.

children.py       child processes that end when this one does; their memory over time
guard.py          a guard over a command: none of its processes outlives the launcher
stopping.py       Ctrl-C and other signals to stop
failures.py       the message of a run that failed
console.py        the launcher's lines, on a terminal and in its log
relay.py          output of worker 0, passed on as it arrives
run_directory.py  the directory of a run
"""
