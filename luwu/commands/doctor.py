"""`luwu doctor`: what this machine has, what is missing, and a block to paste into an issue."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import click

from luwu.base.colours import red
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.own import version
from luwu.base.parsers import path
from luwu.base.quantities import format_bytes
from luwu.commands import form
from luwu.compare.comparison import cpu_name
from luwu.launch.serving import NO_COMPILER, STATE_DIRECTORY, free_memory_bytes

PACKAGES: Final = (
    "torch", "pyzmq", "numpy", "msgpack", "xxhash", "safetensors", "jinja2",
)  # fmt: skip
PROBE_BYTES: Final = 64 * 1024
FREE_DISK_WANTED_BYTES: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's."""

    name: str
    text: str
    advice: str = ""
    """The next thing to do; empty where all is well."""


@form.command("doctor", "luwu doctor", "luwu doctor --disk /mnt/nvme")
@click.option(
    "--disk",
    type=form.Value("DIR", path),
    default=Path(),
    help=f"directory of the state (default: beside {STATE_DIRECTORY})",
)
@form.JSON
def run(disk: Path, as_json: bool) -> int:
    """Check versions, processor, memory and disk of this machine, and show what is missing."""
    if not disk.is_dir():
        raise ConfigError(f"--disk: there is no directory {disk}")
    findings = list(examine(disk))
    wanting = [each for each in findings if each.advice]
    if as_json:
        form.print_json({"schema": 1, "findings": [asdict(each) for each in findings]})
        return 2 if wanting else 0
    print("```")
    for each in findings:
        line = f"{'!!' if each.advice else 'ok'}  {each.name:<10} {each.text}"
        print(red(line, sys.stdout) if each.advice else line)
    print("```")
    for each in wanting:
        print(f"{each.name}: {each.advice}")
    if not wanting:
        print("Nothing is missing. Paste the block above into an issue; next: luwu compare")
    return 2 if wanting else 0


def examine(disk: Path) -> Iterator[Finding]:
    """All findings, one after the other; a check that fails is a finding too."""
    system = f"{platform.system()} {platform.release()}"
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("luwu", lambda: Finding("luwu", version())),
        ("python", lambda: Finding("python", f"{platform.python_version()} on {system}")),
        *((name, lambda name=name: _package(name)) for name in PACKAGES),
        ("device", _device),
        ("cpu", _cpu),
        ("memory", _memory),
        ("disk", lambda: _disk(disk)),
        ("keys", _keys),
        ("kernel", _kernel),
    ]
    for name, check in checks:
        try:
            yield check()
        except (LuwuError, OSError, ImportError) as exc:
            yield Finding(name, f"{type(exc).__name__}: {exc}", "see the message above")


def _package(name: str) -> Finding:
    try:
        return Finding(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "not installed", f"pip install {name}")


def _device() -> Finding:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Finding("device", ", ".join(names))
    return Finding("device", "cpu only")


def _cpu() -> Finding:
    import torch

    count = len(os.sched_getaffinity(0))
    capability = torch.backends.cpu.get_cpu_capability()
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    return Finding(
        "cpu", f"{cpu_name()}, {count} processors, {capability}, OMP_NUM_THREADS {threads}"
    )


def _memory() -> Finding:
    free = free_memory_bytes()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"{format_bytes(free)} free of {format_bytes(total)}"
    if free < 1024**3:
        return Finding("memory", text, "less than 1 GiB is free: each process takes 0.3 GiB")
    return Finding("memory", text)


def _disk(folder: Path) -> Finding:
    from switch_emu.store.direct_io import probe_direct_io

    free = shutil.disk_usage(folder).free
    with tempfile.NamedTemporaryFile(prefix=".luwu-doctor-", dir=folder) as file:
        file.truncate(PROBE_BYTES)
        direct = probe_direct_io(Path(file.name))
    text = f"{format_bytes(free)} free in {folder.absolute()}; {direct.reason}"
    if free < FREE_DISK_WANTED_BYTES:
        return Finding("disk", text, "less than 1 GiB is free; the state takes 24 B a parameter")
    return Finding("disk", text)


def _keys() -> Finding:
    from luwu.transport.curve import check_curve, curve_library

    check_curve()
    library = curve_library()
    if library != "libsodium":
        advice = "connections with keys will be slow: install pyzmq from its own wheels"
        return Finding("keys", f"CURVE by {library}", advice)
    return Finding("keys", "CURVE by libsodium")


def _kernel() -> Finding:
    from switch_emu.node.kernels.make import make_kernel

    made = make_kernel("adamw", ("m", "v"), cache=None)
    text = f"{made.kernel.version}: {made.reason}"
    return Finding("kernel", text, "" if made.kernel.version == "compiled" else NO_COMPILER)
