"""A Hugging Face `config.json` as a model of a question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.commands.main import main
from luwu.predict.ask.question import make_question, read_table
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.model import model_of
from luwu.predict.hardware.software import data

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "tie_word_embeddings": False,
}  # fmt: skip
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-3-8B": (LLAMA, 8_030_261_248),
    "Qwen3-30B-A3B": (
        LLAMA | {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
                 "num_key_value_heads": 4, "vocab_size": 151936, "head_dim": 128,
                 "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                 "decoder_sparse_step": 1, "mlp_only_layers": []},
        30_532_122_624,
    ),
}  # fmt: skip
"""Fields of published files, and the parameters that their pages count."""
QUESTION = """
system = "zero3"
model = "config.json"
device = "H100-80"
network = "ib-ndr"
software = "torchtitan-2024"
devices = 8
sequence = 4096
batch = 8
"""


@pytest.mark.feature("a config.json of Hugging Face as a model")
@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    """Goal: to the last one."""
    fields, parameters = PUBLISHED[name]
    assert model_of(fields, name).parameters == parameters


@pytest.mark.parametrize("name", data("model_configs.toml")["types"])
def test_parameters_are_those_of_transformers(name: str) -> None:
    """Goal: of every type, also with biases. Method: a small model of its own classes."""
    transformers = pytest.importorskip("transformers")
    small = {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128, "head_dim": 32,
        "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 48, "attention_bias": True, "mlp_bias": True,
    }  # fmt: skip
    config = transformers.AutoConfig.for_model(name, **small)
    made = transformers.AutoModelForCausalLM.from_config(config)
    fields = {**small, "model_type": name, "tie_word_embeddings": config.tie_word_embeddings}
    assert model_of(fields, name).parameters == sum(each.numel() for each in made.parameters())


def test_the_file_is_a_model_of_a_question(
    catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Goal: of a question file beside it, and of a flag from where the command runs; its step is
    that of the catalogue's entry of the same shape."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "q.toml").write_text(QUESTION)
    (folder / "named.toml").write_text(QUESTION.replace("config.json", "Llama3-8B"))
    steps = [
        make_question(read_table(folder / name), catalogue).answer().seconds
        for name in ("q.toml", "named.toml")
    ]
    assert steps[0] == pytest.approx(steps[1], rel=1e-5)  # but for the last norm
    monkeypatch.chdir(tmp_path)
    flags = ["--model", "model/config.json", "--recompute", "full"]
    assert main(["predict", "step", "model/q.toml", *flags]) == 0
    assert capsys.readouterr().out.startswith("model/config.json (8.0 B) by zero3")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gpt2"}, "model_type: 'gpt2' is not one of llama"),
        ({"model_type": "mixtral"}, "num_local_experts is missing; a mixtral has"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
        ({"vocab_size": "many"}, "vocab_size: 'many' is not a whole number"),
        ({"model_type": "qwen3"}, "head_dim is missing"),
        ({"mlp_only_layers": [0]}, "its layers are not equal"),
        ({"num_key_value_heads": 5}, "kv_heads: 5 do not divide 32"),
    ],
)
def test_bad_fields(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        model_of({**LLAMA, **change}, "config.json")


def test_bad_file(catalogue: Catalogue, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ConfigError, match=r"config.json cannot be read"):
        catalogue.model(str(path))
    for text, said in (("{", "is not JSON"), ("[]", "is not the config.json of a model")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            catalogue.model(str(path))
