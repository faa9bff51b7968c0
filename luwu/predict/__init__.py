"""The performance model: the time of a step on machines that are not here, and its cost.

    hardware/   devices, networks, hosts, and what is known of them, with sources
    model/      a transformer in numbers: layers, operators, exchanges, memory
    networks/   topologies, and the share of them that an exchange has
    systems/    a training step of each system, by closed forms
    inference/  prefill and decode, by closed forms; requests under load, round by round
    driven/     LuWu's own cores in virtual time
    ask/        a question from a file, its answer, and sweeps
    plan.py      the best configuration of training
    data/       the catalogue, fitted numbers

Times are seconds, sizes bytes, rates bytes or operations per second, one direction of a link, dense
operations: SI without prefixes. Equations have numbers; docs/predict/equations.md lists them.
"""
