"""The table of keys: one order of places, one parser, and no key that is ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.base.config import KEYS, ConfigError, Resolved, RunConfig, resolve
from luwu.base.quantities import exact_size


def resolved(
    flags: dict[str, str] | None = None,
    environ: dict[str, str] | None = None,
    file: Path | None = None,
) -> Resolved:
    return resolve(flags=flags or {}, environ=environ or {}, file=file)


def test_places_win_in_the_documented_order(tmp_path: Path) -> None:
    """Goal: defaults < file < environment < flags, and the origin says which it was."""
    file = tmp_path / "luwu.toml"
    file.write_text("steps = 2\nseed = 2\nlayers = 2\n")
    found = resolve(
        file=file, environ={"LUWU_SEED": "3", "LUWU_LAYERS": "3"}, flags={"layers": "4"}
    )
    config = found.config
    assert (config.steps, config.seed, config.layers) == (2, 3, 4)
    assert found.origins["steps"] == f"file {file}"
    assert found.origins["seed"] == "environment LUWU_SEED"
    assert found.origins["layers"] == "flag --layers"
    assert found.origins["context"] == "default"


def test_a_value_set_to_its_default_is_not_unset() -> None:
    assert not resolved({"workers": "2"}).is_default("workers")
    assert resolved().is_default("workers")


def test_the_file_of_the_environment_is_read_unless_a_flag_names_one(tmp_path: Path) -> None:
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text("workers = 3\n")
    other.write_text("workers = 4\n")
    assert resolved(environ={"LUWU_CONFIG": str(one)}).config.workers == 3
    assert resolved(environ={"LUWU_CONFIG": str(one)}, file=other).config.workers == 4


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("memory_budget", "2GiB", 2**31),
        ("memory_budget", "auto", None),
        ("chunk", "512KiB", 512 * 1024),
        ("grace", "10min", 600.0),
        ("reshard_after_forward", "false", False),
        ("arms", "luwu, single", ("luwu", "single")),
        ("max_grad_norm", "1.5", 1.5),
        ("state", "a/b", Path("a/b")),
    ],
)
def test_values_carry_their_units(key: str, text: str, value: object) -> None:
    assert getattr(resolved({key: text}).config, key) == value


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("chunk", "4", "has no unit"),
        ("chunk", "20KiB", "give 16KiB"),
        ("chunk", "1GiB", "give 64MiB"),
        ("memory_budget", "0", "more than nothing"),
        ("workers", "0", "from 1 to 1024"),
        ("steps", "-1", "of at least 1"),
        ("arms", "luwu,fdsp", "did you mean fsdp"),
        ("arms", "luwu,luwu", "twice"),
        ("dtype", "float16", "float32, bfloat16"),
        ("resume", "yes", "neither true nor false"),
        ("max_grad_norm", "nan", "above 0"),
        ("grace", "0s", "fail at once"),
        ("on_worker_loss", "forget", "not one of stop"),
        ("ranks", "0-1,1", "names a rank twice"),
        ("ranks", "2-1", "neither a rank nor a range"),
    ],
)
def test_what_cannot_work_is_refused_by_name(key: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        resolved({key: text})
    assert KEYS[key].flag in str(caught.value)


def test_workers_that_may_join_are_the_workers() -> None:
    """Goal: `workers_max` is the number of ranks, wherever it is set; two numbers are an error."""
    found = resolved({"workers_max": "7"})
    assert found.config.workers == found.config.workers_max == 7
    assert not found.is_default("workers")
    with pytest.raises(ConfigError, match="workers and workers_max: one number of ranks"):
        resolved({"workers_max": "7", "workers": "7"})


def test_unknown_keys_are_errors_wherever_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "luwu.toml"
    file.write_text('memory_bugdet = "1GiB"\n')
    with pytest.raises(ConfigError, match=r"memory_bugdet.*did you mean memory_budget"):
        resolved(file=file)
    with pytest.raises(ConfigError, match=r"LUWU_WORKER, .*did you mean LUWU_WORKERS"):
        resolved(environ={"LUWU_WORKER": "2"})
    with pytest.raises(ConfigError, match="LUWU_NONSENSE_XYZ"):
        resolved(environ={"LUWU_NONSENSE_XYZ": "2"})


def test_variables_that_are_no_keys_are_let_through() -> None:
    environ = {"LUWU_CONNECT": "x", "LUWU_FAILPOINTS": "y", "PATH": "z"}
    assert resolved(environ=environ).config == RunConfig()


@pytest.mark.parametrize(
    "text", ["a = [1", "workers = { a = 1 }", "[run]\nworkers = 2", "arms = [1]"]
)
def test_a_file_that_is_no_table_of_keys_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "luwu.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"luwu\.toml"):
        resolved(file=file)


def test_a_file_takes_lists_numbers_and_dashes(tmp_path: Path) -> None:
    file = tmp_path / "luwu.toml"
    file.write_text('arms = ["luwu", "ddp"]\nmax-grad-norm = 0.5\nresume = true\n')
    config = resolved(file=file).config
    assert (config.arms, config.max_grad_norm, config.resume) == (("luwu", "ddp"), 0.5, True)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        resolved(file=tmp_path / "none.toml")


def test_what_is_kept_of_a_run_can_be_given_again() -> None:
    """Goal: `resolved.json` is enough to repeat a run.
    Method: resolve the texts of a document again and compare the configurations."""
    first = resolved({"chunk": "3MiB", "arms": "single", "resume": "true", "grace": "90s"})
    texts = {
        name: entry["value"]
        for name, entry in first.document()["keys"].items()
        if entry["value"] is not None
    }
    assert resolved(texts).config == first.config


def test_exact_sizes_lose_nothing() -> None:
    assert [exact_size(n) for n in (2**31, 1536 * 1024, 16384, 1000)] == [
        "2GiB", "1536KiB", "16KiB", "1000B",
    ]  # fmt: skip
