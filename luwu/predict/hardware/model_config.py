"""The `config.json` of a model of Hugging Face, as a `Transformer`.

Decoders of equal layers with a gated MLP are read, by their `model_type`: KINDS. Another type, and
a field that is missing, is an error that names it. Attention counts all of a sequence, also where
the model has a window. Biases and the norms of queries and keys are `other_parameters`, so that the
number of parameters is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError, suggestion
from luwu.base.foreign import parse_json, read_file
from luwu.base.limits import TOML_BYTES_MAX
from luwu.predict.hardware.model import Transformer

CONFIG_SUFFIX: Final = ".json"
_PLACES: Final = {
    "hidden_size": "hidden", "num_hidden_layers": "layers", "num_attention_heads": "heads",
    "vocab_size": "vocab",
}  # fmt: skip
"""Fields that every type has."""
_OPTIONAL: Final = {"num_key_value_heads": "kv_heads", "head_dim": "head_width"}
"""As many as heads, and the width over heads, unless given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """What the fields of a type are called, and what its layers have besides."""

    ffn: str = "intermediate_size"
    experts: str = ""
    biased: bool = False
    """Queries, keys and values always have biases."""
    biases: tuple[str, ...] = ()
    """Fields that say whether it has more of them."""
    normed: bool = False
    """Queries and keys have norms of one head's width; `head_dim` must be given."""


_ATTENTION_BIAS: Final = "attention_bias"
_MLP_BIAS: Final = "mlp_bias"
KINDS: Final = {
    "llama": ModelKind(biases=(_ATTENTION_BIAS, _MLP_BIAS)),
    "mistral": ModelKind(),
    "mixtral": ModelKind(experts="num_local_experts"),
    "qwen2": ModelKind(biased=True),
    "qwen3": ModelKind(biases=(_ATTENTION_BIAS,), normed=True),
    "qwen3_moe": ModelKind(
        ffn="moe_intermediate_size", experts="num_experts", biases=(_ATTENTION_BIAS,), normed=True
    ),
}


def read_model_config(path: Path) -> Transformer:
    """The model of a file; its name is the path. Raises ConfigError."""
    try:
        fields = parse_json(read_file(path, TOML_BYTES_MAX))
    except OSError as exc:
        raise ConfigError(f"model: {path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise ConfigError(f"model: {path} is not JSON: {exc}") from exc
    if not isinstance(fields, dict):
        raise ConfigError(f"model: {path} is not the config.json of a model")
    return model_of(fields, str(path))


def model_of(fields: Mapping[str, Any], place: str) -> Transformer:
    """The model of the fields of a `config.json`; `place` is its name. Raises ConfigError."""
    name = fields.get("model_type")
    if not isinstance(name, str) or name not in KINDS:
        raise ConfigError(
            f"{place}: model_type: {name!r} is not one of {', '.join(KINDS)}"
            f"{suggestion(str(name), KINDS)}; describe another model by --catalogue FILE"
        )
    kind = KINDS[name]
    if fields.get("mlp_only_layers") or fields.get("decoder_sparse_step", 1) != 1:
        raise ConfigError(
            f"{place}: mlp_only_layers, decoder_sparse_step: its layers are not equal; only models "
            "of equal layers can be predicted"
        )
    needed = {**_PLACES, kind.ffn: "ffn"}
    if kind.experts:
        needed |= {kind.experts: "experts", "num_experts_per_tok": "experts_used"}
    if kind.normed:
        needed |= {"head_dim": "head_width"}
    optional = {
        field: key for field, key in _OPTIONAL.items() if fields.get(field) is not None
    }  # fmt: skip
    entry: dict[str, Any] = {"gated": True, "tied": bool(fields.get("tie_word_embeddings"))}
    for field, key in (needed | optional).items():
        value = fields.get(field)
        if value is None:
            raise ConfigError(f"{place}: {field} is missing; a {name} has {', '.join(needed)}")
        if type(value) is not int or value < 1:
            raise ConfigError(f"{place}: {field}: {value!r} is not a whole number above zero")
        entry[key] = value
    model = Transformer.parse(place, place, entry)
    more = _small_parameters(model, kind, fields)
    return Transformer.parse(place, place, {**entry, "other_parameters": more})


def _small_parameters(model: Transformer, kind: ModelKind, fields: Mapping[str, Any]) -> int:
    """Biases, norms of queries and keys, and the last norm."""
    queries = model.head_width * (model.heads + 2 * model.kv_heads)
    biases = [field for field in kind.biases if fields.get(field)]
    each = 2 * model.head_width if kind.normed else 0
    each += queries if kind.biased else 0
    each += queries + model.hidden if _ATTENTION_BIAS in biases else 0
    each += 2 * model.ffn + model.hidden if _MLP_BIAS in biases else 0
    return model.layers * each + model.hidden
