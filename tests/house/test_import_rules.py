"""Rules about imports and calls that import-linter cannot say, read from the syntax tree.

    R1  The clock is read in `luwu/base/clock.py` only: nothing else imports `time` or asks
        `datetime` for the present. Tests and benchmarks may.
    R2  Nothing runs that was sent (I7): no pickle and what hides it, no `torch.load`, no
        `yaml.load`, no `eval`, no `exec`. Nothing is handed to a shell.
    R3  Page files are opened in `switch_emu/store` only: direct and positioned I/O appear nowhere
        else. Tests and benchmarks may.
    R4  What starts often, or must stay small, does not import torch, or what else takes long.

The other rules stand in pyproject.toml under `[tool.importlinter]`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("luwu", "switch_emu", "workers")
FOLDERS = (*PACKAGES, "benchmarks", "tests")

CLOCK_FILE = "luwu/base/clock.py"
STORE_FOLDER = "switch_emu/store/"

PRESENT_NAMES = {"now", "utcnow", "today"}
PICKLING_MODULES = {
    "_pickle", "cloudpickle", "dill", "jsonpickle", "joblib", "marshal", "pickle", "shelve",
}  # fmt: skip
CODE_NAMES = {"eval", "exec", "compile", "__import__"}
CODE_LOADERS = {
    "torch.load", "torch.jit.load", "yaml.load", "yaml.load_all", "yaml.unsafe_load",
    "yaml.full_load", "yaml.Loader", "yaml.UnsafeLoader", "yaml.FullLoader",
    "builtins.eval", "builtins.exec", "builtins.compile", "builtins.__import__",
}  # fmt: skip
"""What makes code, or objects of any class, out of data."""
PICKLING_CALLS = {
    "all_gather_object", "broadcast_object_list", "read_pickle", "to_pickle", "gather_object",
    "recv_pyobj", "scatter_object_list", "send_pyobj",
}  # fmt: skip
SHELL_CALLS = {
    "asyncio.create_subprocess_shell", "os.popen", "os.system", "pty.spawn",
    "subprocess.getoutput", "subprocess.getstatusoutput",
}  # fmt: skip
MEMORY_MAPPED_POSITION = 2
"""Of `allow_pickle` among the arguments of np.load."""
PAGE_FILE_NAMES = {"O_DIRECT", "preadv", "pwritev"}

LIGHT_MODULES = [
    "luwu", "luwu.base", "luwu.checkpoint.export_state", "luwu.commands.run",
    "luwu.estimate.script", "luwu.layout", "luwu.nic.core", "luwu.testing.plugin",
    "luwu.transport", "luwu.wire", "switch_emu.__main__", "switch_emu.node.core",
    "switch_emu.node.process", "switch_emu.switch.core", "switch_emu.switch.process",
]  # fmt: skip

Nodes = Sequence[ast.AST]
"""All nodes of the syntax tree of one file."""


def imported_names(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Each imported name in full: `from a.b import c` gives a.b.c; also inside functions."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an expression; a part that is no name becomes `?`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def clock_offences(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """R1."""
    for line, name in imported_names(nodes):
        if name.split(".")[0] == "time":
            yield line, f"R1: imports {name}; take the time from luwu.base.clock"
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in PRESENT_NAMES:
            owner = dotted(node.value).split(".")[-1]
            if owner in {"datetime", "date"}:
                yield node.lineno, f"R1: {owner}.{node.attr}; take the time from luwu.base.clock"


def code_offences(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """R2."""
    for line, name in imported_names(nodes):
        parts = {*name.split(".")}
        if parts & PICKLING_MODULES or name in CODE_LOADERS | SHELL_CALLS:
            yield line, f"R2: imports {name}"
    for node in nodes:
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            if name in CODE_LOADERS | SHELL_CALLS or node.attr in PICKLING_CALLS:
                yield node.lineno, f"R2: {name}"
        elif isinstance(node, ast.Name) and node.id in CODE_NAMES:
            yield node.lineno, f"R2: {node.id}"
        elif isinstance(node, ast.Call):
            yield from hidden_offences(node)
        elif isinstance(node, ast.keyword) and node.arg in {"shell", "allow_pickle"}:
            said_false = isinstance(node.value, ast.Constant) and node.value.value is False
            if not said_false:
                yield node.lineno, f"R2: {node.arg} is not False"


def hidden_offences(call: ast.Call) -> Iterator[tuple[int, str]]:
    """R2, where a name is a text, or an argument has none."""
    name = dotted(call.func)
    texts = [each.value for each in call.args if isinstance(each, ast.Constant)]
    named = {part for text in texts if isinstance(text, str) for part in text.split(".")}
    if name.split(".")[-1] in {"import_module", "getattr"} and named & (
        PICKLING_MODULES | PICKLING_CALLS | {"eval", "exec", "system", "popen"}
    ):
        yield call.lineno, f"R2: {name} of {sorted(named)}"
    if name in {"np.load", "numpy.load"} and len(call.args) > MEMORY_MAPPED_POSITION:
        yield call.lineno, f"R2: {name} with allow_pickle by position; name it, False"


def page_file_offences(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """R3."""
    for line, name in imported_names(nodes):
        if name.split(".")[-1] in PAGE_FILE_NAMES:
            yield line, f"R3: imports {name}"
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in PAGE_FILE_NAMES:
            yield node.lineno, f"R3: {dotted(node)}; page files are opened in {STORE_FOLDER}"


def offences(path: str, source: str) -> tuple[str, ...]:
    """All offences of one file; `path` is relative to the root and decides which rules apply."""
    nodes = [*ast.walk(ast.parse(source, path))]
    found = list(code_offences(nodes))
    if path.split("/")[0] in PACKAGES:
        if path != CLOCK_FILE:
            found += clock_offences(nodes)
        if not path.startswith(STORE_FOLDER):
            found += page_file_offences(nodes)
    return tuple(f"{path}:{line}: {what}" for line, what in sorted(found))


def all_offences(root: Path) -> list[str]:
    """All offences of all files."""
    return [
        offence
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        for offence in offences(path.relative_to(root).as_posix(), path.read_text("utf-8"))
    ]


def test_every_file_keeps_the_rules() -> None:
    """R1, R2, R3. Goal: no file breaks a rule. Method: read the syntax tree of each."""
    found = all_offences(ROOT)
    assert not found, "\n" + "\n".join(found)


def test_a_planted_line_is_found(tmp_path: Path) -> None:
    """Goal: the test above fails for one line in one file of any folder, however deep."""
    for folder in FOLDERS:
        file = tmp_path / folder / "a" / "b" / "planted.py"
        file.parent.mkdir(parents=True)
        file.write_text("\nimport pickle\n")
    planted = [f"{folder}/a/b/planted.py:2: R2: imports pickle" for folder in FOLDERS]
    assert all_offences(tmp_path) == planted


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "def f():\n    import time as t",
        "import datetime\nx = datetime.datetime.now()",
        "from datetime import datetime\nx = datetime.now",
        "import pickle",
        "from multiprocessing.reduction import x\nimport marshal",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "exec('x')",
        "x = map(eval, ['1'])",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import os\nos.system('ls')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "dist.broadcast_object_list([1])",
        "from joblib import load",
        "import dill as d",
        "from six.moves import cPickle, pickle",
        "import yaml\nyaml.load('a')",
        "from yaml import unsafe_load",
        "import yaml\nyaml.safe_load('a', yaml.Loader)",
        "socket.recv_pyobj()",
        "socket.send_pyobj(1)",
        "eval('1')",
        "f = exec",
        "__import__('os')",
        "compile('1', '', 'eval')",
        "import builtins\nbuiltins.eval('1')",
        "import importlib\nimportlib.import_module('pickle')",
        "import os\ngetattr(os, 'system')('ls')",
        "import numpy as np\nnp.load('x', None, True)",
        "import subprocess\nsubprocess.Popen('ls', shell=1)",
        "import asyncio\nasyncio.create_subprocess_shell('ls')",
        "import torch\ntorch.jit.load('x')",
        "import os\nos.preadv(3, [], 0)",
        "from os import O_DIRECT",
    ],
)
def test_each_rule_finds_what_it_forbids(source: str) -> None:
    """Goal: a rule that never fires would pass above too. Method: one offence in each source."""
    assert offences("luwu/example.py", source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("luwu/base/clock.py", "import time\nx = time.time_ns()"),
        ("benchmarks/example.py", "import time"),
        ("switch_emu/store/example.py", "import os\nx = os.O_DIRECT"),
        ("luwu/example.py", "model.eval()\nfrom luwu.base import time"),
        ("luwu/example.py", "import subprocess\nsubprocess.run(['ls'], shell=False)"),
        ("luwu/example.py", "import yaml\nyaml.safe_load('a')\nre.compile('a')\ntorch.compile(f)"),
        ("luwu/example.py", "import numpy as np\nnp.load('x', allow_pickle=False)"),
    ],
)
def test_the_rules_allow_the_rest(path: str, source: str) -> None:
    """Goal: the rules stay out of the way elsewhere."""
    assert not offences(path, source)


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_import_leaves_torch_out(module: str) -> None:
    """R4. Goal: a process that only needs this module does not pay for torch, nor for what few ask
    for: the list of installed packages (40 ms), predictions (300 ms)."""
    costly = "('torch', 'importlib.metadata', 'luwu.predict')"
    program = f"import sys, {module}; print([n for n in {costly} if n in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True
    )
    allowed = ["importlib.metadata"] if module == "luwu.testing.plugin" else []  # of pytest
    assert (result.returncode, result.stdout) == (0, f"{allowed}\n"), result.stderr


def test_a_worker_and_an_estimate_import_no_compiler() -> None:
    """Goal: a worker's start takes what torch takes, and not twice that: neither torch's compiler
    nor its distributed tensors are imported by `luwu`, its optimizers, its state dicts, a model
    without storage or what describes a script. Method: a process that makes all of them."""
    script = (
        "import sys, torch, luwu, luwu.optim, luwu.estimate.describe, workers.arms\n"
        "from luwu.training.script.fully_shard import fully_shard\n"
        "from workers.gpt import GPTConfig, without_storage\n"
        "config = GPTConfig(vocab=8, layers=1, width=16, heads=1, context=4)\n"
        "model = without_storage(config)\n"
        "assert all(each.is_meta for each in model.parameters())\n"
        "assert luwu.get_model_state_dict\n"
        "compiler = ('torch._dynamo', 'torch.distributed.tensor', 'sympy')\n"
        "print([n for n in compiler if n in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "[]\n"
