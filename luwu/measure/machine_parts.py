"""One part of a step by itself, in a process with the environment it has in a run.

    python -m luwu.measure.machine_parts PART '{"...": ...}'      prints a line of JSON

    compute   the built-in GPT, forward and backward; waits for a line, so that all workers compute
              at once
    copies    a worker's: gradients to where they are sent from, weights to a unit's own addresses
    sums      the switch's, of as many gradients as there are workers
    send, receive    the two ends of a link, with nothing to do for either but that

What is counted are seconds of a processor that this process took, so other work on the machine
changes them little.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from luwu.base.errors import LuwuError
from luwu.measure.timing import cpu_seconds
from luwu.transport.interface import Delivery, PeerDown, PeerUp, Transport
from luwu.transport.opening import open_transport

Document = dict[str, Any]
REPEATS_MIN: Final = 5
WINDOW: Final = 4
"""Messages under way on a link."""
PEER: Final = "peer"
WARM, COUNTED, LAST = b"w", b"c", b"l"


def median_cpu(work: Callable[[], object], seconds: float) -> float:
    """Median seconds of a processor that `work` takes, done for so long; the first warms up."""
    work()
    found: list[float] = []
    while len(found) < REPEATS_MIN or sum(found) < seconds:
        before = cpu_seconds()
        work()
        found.append(cpu_seconds() - before)
    return float(np.median(found))


def compute(asked: Document) -> Document:
    """Seconds of a forward and a backward, and the share of what is not in blocks."""
    import torch

    from workers.gpt import GPT, GPTConfig, init_weights

    torch.set_num_threads(asked["threads"])
    config = GPTConfig(**asked["model"])
    model = GPT(config)
    for module in model.modules():
        init_weights(module, 0)
    ids = torch.randint(0, config.vocab, (asked["batch"], config.context))
    blocks_s = [0.0]
    for block in model.blocks:
        block.register_forward_pre_hook(lambda *_: blocks_s.append(-cpu_seconds()))
        block.register_forward_hook(lambda *_: blocks_s.append(cpu_seconds()))
    print("ready", flush=True)
    sys.stdin.readline()
    passes: list[tuple[float, float, float]] = []
    while len(passes) < REPEATS_MIN + 1 or sum(map(sum, passes)) < asked["seconds"]:
        blocks_s.clear()
        start = cpu_seconds()
        logits = model(ids).float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        middle = cpu_seconds()
        loss.backward()
        end = cpu_seconds()
        model.zero_grad()
        passes.append((middle - start, end - middle, sum(blocks_s)))
    forward_s, backward_s, in_blocks_s = np.median(passes[1:], axis=0).tolist()
    root_ratio = min(1.0, max(0.0, 1 - in_blocks_s / forward_s))
    return {"forward_s": forward_s, "backward_s": backward_s, "root_ratio": root_ratio}


def copies(asked: Document) -> Document:
    """Seconds by byte of a worker's two copies, over as much memory as the model has."""
    from luwu.base.address_range import AddressRange, Memory

    chunk, unit = asked["chunk_bytes"], asked["unit_bytes"]
    count = max(2, asked["model_bytes"] // unit)
    pieces = [(start, min(start + chunk, unit)) for start in range(0, unit, chunk)]
    sources = np.ones((count, unit), np.uint8)
    targets = np.zeros((count, unit), np.uint8)

    def gradients() -> None:
        for source, target in zip(sources, targets, strict=True):
            for start, stop in pieces:
                np.copyto(target[start:stop], source[start:stop])

    memory, ranges = Memory(), [AddressRange(unit) for _ in range(count)]

    def weights() -> None:
        for source, each in zip(sources, ranges, strict=True):
            memory.fill(each)
            target = np.frombuffer(each.view(), np.uint8)
            for start, stop in pieces:
                np.copyto(target[start:stop], source[start:stop])
            memory.spare(each)

    return {
        "gradient_s_per_byte": median_cpu(gradients, asked["seconds"]) / sources.nbytes,
        "weights_s_per_byte": median_cpu(weights, asked["seconds"]) / sources.nbytes,
    }


def sums(asked: Document) -> Document:
    """Seconds of the switch by byte that it adds."""
    from switch_emu.switch.adding import make_adder

    add, workers, elems = make_adder().add, asked["workers"], asked["chunk_bytes"] // 4
    count = max(2, asked["model_bytes"] // asked["chunk_bytes"])
    gradients = np.ones((count, workers, elems), np.float32).view(np.uint8)
    totals = np.zeros((count, elems), np.float32)

    def work() -> None:
        for chunk, total in zip(gradients, totals, strict=True):
            add([each.data for each in chunk], ["float32"] * workers, total)

    return {"sum_s_per_byte": median_cpu(work, asked["seconds"]) / gradients.nbytes}


def send(asked: Document) -> Document:
    """Seconds by message of each size, at the end that sends."""
    found: list[float] = []
    with open_transport(asked["endpoint"]) as transport:
        print(json.dumps(transport.listen(asked["endpoint"])), flush=True)
        item = transport.receive(None)
        assert isinstance(item, PeerUp)
        for nbytes, count in zip(asked["sizes"], asked["counts"], strict=True):
            buffers = [transport.reserve(nbytes) for _ in range(WINDOW)]
            for memory in buffers:
                memory[:] = bytes(nbytes)
            _stream(transport, item.peer, buffers, WARM, WINDOW)
            before = cpu_seconds()
            _stream(transport, item.peer, buffers, COUNTED, count)
            found.append((cpu_seconds() - before) / count)
        transport.send(item.peer, LAST)
        _answer(transport)
    return {"message_s": found}


def _stream(
    transport: Transport, peer: str, buffers: list[memoryview], header: bytes, count: int
) -> None:
    """Send so many, some at a time; each is answered."""
    for index in range(count + WINDOW):
        if index >= WINDOW:
            _answer(transport)
        if index < count:
            transport.send(peer, header, (buffers[index % WINDOW],))


def _answer(transport: Transport) -> Delivery:
    """The next message. Raises LuwuError where the other end is gone."""
    while not isinstance(item := transport.receive(None), Delivery):
        if isinstance(item, PeerDown):
            raise LuwuError(f"the other end of the link is gone: {item.reason}")
    return item


def receive(asked: Document) -> Document:
    """Seconds by message of each size, at the end that receives."""
    found: list[float] = []
    with open_transport(asked["endpoint"]) as transport:
        transport.dial(PEER, asked["endpoint"])
        before, count, is_last = 0.0, 0, False
        while not is_last:
            item = _answer(transport)
            header = bytes(item.header)
            item.release()
            transport.send(PEER, b"a")
            is_last = header == LAST
            if header != COUNTED and count:
                found.append((cpu_seconds() - before) / count)
                count = 0
            if header == COUNTED:
                count += 1
            else:
                before = cpu_seconds()
    return {"message_s": found}


PARTS: Final[dict[str, Callable[[Document], Document]]] = {
    "compute": compute, "copies": copies, "sums": sums, "send": send,
    "receive": receive,
}  # fmt: skip


def main() -> None:
    """Do a part; say what it took."""
    part, asked = sys.argv[1:]
    print(json.dumps(PARTS[part](json.loads(asked))), flush=True)


if __name__ == "__main__":
    main()
