"""Models that read the weights of a job in training (`luwu.read_from`).

read_from.py        the model, and what surrounds its forwards
read_units.py       the units of the job, found in it by names
read_buffers.py     its buffers, which are not in the network
reading_thread.py   reads one unit while another computes
"""
