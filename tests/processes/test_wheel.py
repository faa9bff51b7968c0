"""The wheel and the sdist: what is in them, and that `luwu compare` runs from an installed wheel.

It runs outside of the repository, in a directory with folders called `workers` and `switch_emu`.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks.namespaces import CENTRE, Hosts
from luwu.base.own import PACKAGES, own_module
from luwu.base.tree import tree_of_hosts
from tests.helpers.local_job import Job, plain_of
from tests.processes.commands import Command, Terminal, summary
from tests.release import build, metadata_in, metadata_problems
from tests.suites.unpack import unpack_all

ROOT = Path(__file__).resolve().parents[2]


for needed in ("hatchling", "hatch_fancy_pypi_readme"):
    pytest.importorskip(needed, reason="make setup installs it")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename for each in archive.infolist()}


def test_wheel_holds_our_packages(wheel: Path) -> None:
    """Goal: every file of the packages, and nothing beside them."""
    packages = ("luwu", *PACKAGES)
    names = names_in(wheel)
    ours = {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.partition("/")[0] in packages} == ours
    others = {name.partition("/")[0] for name in names} - set(packages)
    assert [re.sub(r"-\d+(\.\d+)*", "", name) for name in others] == ["luwu_emulator.dist-info"]
    assert metadata_problems(metadata_in(wheel)) == []


def test_sdist_makes_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """Goal: who has the sdist alone can build it."""
    with tarfile.open(sdist) as archive:
        unpack_all(archive, tmp_path)
    (source,) = tmp_path.iterdir()
    again = build(source, tmp_path / "again", "wheel")
    assert names_in(again) == names_in(wheel)


def test_index_page_has_no_dead_links(wheel: Path) -> None:
    """Goal: a package index shows the README away from the repository: its links into it and into
    itself are plain text there, and nothing else is lost."""
    text = str(metadata_in(wheel).get_payload())
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert links
    assert all(link.startswith("https://") for link in links)
    assert "Features (`docs/features.md` in the source)" in text
    assert "![" not in text
    assert text.count("\n## ") == (ROOT / "README.md").read_text().count("\n## ")


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the wheel is installed in, without a network."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", str(site), str(wheel)], check=True)
    return site


@pytest.mark.feature("an installed wheel, beside folders called `workers` and `switch_emu`")
def test_compare_from_an_installed_wheel(wheel: Path, site: Path, shell: Terminal) -> None:
    """Goal: the wheel is whole, and our packages are used though others hide them. Method: install
    it without a network into a directory, in front of everything; a folder of the user's own, where
    the commands are typed, has packages of the same names, which end whoever imports them."""
    environ = {"PYTHONPATH": str(site)}
    for package in PACKAGES:
        (shell.directory / package).mkdir()
        (shell.directory / package / "__init__.py").write_text("raise SystemExit('not ours')\n")

    small = ["--steps", "2", "--layers", "1", "--width", "32", "--batch", "2", "--context", "16"]
    done = shell.succeed("compare", "--arms", "luwu", "--workers", "1", *small, **environ)
    assert "weights digest" in done.out

    script = [sys.executable, str(site / "bin" / "luwu")]
    found = shell.start_program(script, ["--version"], environ)
    assert found.wait() == 0, found.err
    assert found.out.startswith(f"luwu {metadata_in(wheel)['Version']}, python ")
    train = [*own_module("workers.train"), "--arm", "luwu", *small]
    run = shell.start_program(script, ["run", "--workers", "1", *train], environ)
    run.wait()
    assert run.process.returncode == 0, run.err


@pytest.mark.feature("an installed wheel, beside folders called `workers` and `switch_emu`")
@pytest.mark.feature("trees of switches")
@pytest.mark.feature("connections with keys")
def test_two_hosts_from_an_installed_wheel(site: Path, shell: Terminal, network: Hosts) -> None:
    """I3, I7. Goal: two hosts are started by the line that `luwu up` prints, each with a key of its
    own and no other; the weights are those of the tree of both."""
    here = shell.directory
    program = [sys.executable, str(site / "bin" / "luwu")]
    environ = {"PYTHONPATH": f"{site}:{ROOT}"}  # the script is in the tests

    def start(where: list[str], *arguments: str) -> Command:
        return shell.start_program([*where, *program], arguments, environ)

    assert start([], "keys", "init", "--keys", "keys", "--hosts", "2").wait() == 0
    up = ("up", "--run-dir", "up", "--workers", "4", "--hosts", "2", "--state", "state")
    where = ("--bind", f"tcp://{CENTRE}:0", "--keys", "keys")
    commands = [start(network.centre, *up, *where)]
    line = shlex.split(commands[0].wait_for(r"^join    luwu (run .* SCRIPT)$")[1])
    for host, ranks in enumerate(("0-1", "2-3")):
        (here / f"keys-{host}").mkdir(mode=0o700)
        key = f"switch-host-{host}.secret"
        shutil.copy(here / "keys" / key, here / f"keys-{host}" / key)
        words = {"keys": f"keys-{host}", "0-1": ranks}
        typed = [words.get(word, word) for word in line[:-1]]
        flags = ("--run-dir", f"host-{host}", "-m", "tests.light_job", "--steps", "4")
        commands.append(start(network.host(host), *typed, *flags))
    for command in reversed(commands):
        assert command.wait() == 0, command.err
    events = (here / "host-1" / "events" / "switch-host-1.jsonl").read_text()
    assert re.search(r'^{"name":"link",.*"up":[1-9]', events, re.MULTILINE)
    job = Job(world_size=4, steps=4, tree=tree_of_hosts(4, 2))
    assert summary(here / "up")["weights_digest"] == plain_of(job, [range(4)] * 4).digest
