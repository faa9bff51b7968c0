"""The performance model: how long a step takes on machines that are not here, and what it costs.

What is known, and what is asked:

    units.py        numbers with units, of files and of people -> SI
    curves.py       measured rates by size
    hardware.py     devices, networks, drives, processors, switches, and what they are made of
    catalogue.py    all of it from files, each number with its source; files of users over them
    scaling.py      hardware of later generations
    model.py        a transformer: parameters, operations
    software.py     what a framework does; what was fitted
    job.py          what is trained, on what, how; what a prediction is
    question.py     a job on a system, as users write it

How long things take:

    operators.py    a matrix product, a pass over memory
    layers.py       a layer, forward and backward
    context.py      keys and values of a sequence that ranks share
    experts.py      MLPs of which a token passes some, and ranks that share them
    collectives.py  ranks that exchange
    placement.py    which of them share a domain
    overlap.py      compute and exchange at once
    hosts.py        processors and drives that take part
    rank_groups.py, topologies.py, direct_topologies.py, topology_graphs.py    networks
    on_topology.py  a job on one of them

Systems, by closed forms:

    training.py     tensor, pipeline, context and data parallel ranks
    zero.py         sharded states        offload.py      and offloaded ones
    replicated.py   DDP, sums in a switch        in_network.py   LuWu
    memory.py       what a device holds
    inference.py, inference_job.py, inference_sockets.py    prefill and decode
    events/         played through: LuWu's steps, pipelines of training, flows, serving

This machine, where all of a run's processes share a few cores:

    machine.py, machine_cores.py, machine_play.py    a step from floors that are measured here

What is said of it:

    answer.py       the answer, of answer_training.py, answer_inference.py, answer_arrivals.py and
                    answer_parts.py
    sensitivity.py  what it hangs on    cost.py    what it costs
    break_even.py   tokens that hide exchanges
    planner.py      the best of all configurations, of planner_space.py and planner_budget.py;
                    plan_text.py says it, and replay.py plays its best
    planner_inference.py    the same of inference, of planner_inference_space.py
    search.py       what both searches have in common; plan_text.py prints both
    sweep.py        a question over values of its keys
    pictures.py     what was played, as rows of a picture
    calibration.py, offload_calibration.py, inference_calibration.py, validate.py,
    rankings.py
                    published results beside predictions

Times are seconds, sizes bytes, rates bytes or operations a second, one direction of a link, dense
operations: SI without prefixes. Equations have numbers; docs/predict/equations.md has all of them.
"""
