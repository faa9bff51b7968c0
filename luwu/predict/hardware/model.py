"""A transformer as numbers: parameters, matrix products, operations, activations.

    M1  a layer's forward     2 parameters that a token passes, and M2, for each token; those are
                              the matrices of attention, of k experts, and the router's h E
    M2  attention             4 s (width of all heads) for each token; half where a mask is used
    M3  a step                3 times the forward of all layers and the output layer

Source: Narayanan et al. SC'21, whose formula for GPT this equals.
Symbols of the equations: h hidden width, a heads, g heads of keys and values, f width of the MLP,
V vocabulary, l layers, E experts of which k are used, s tokens of a sequence, n tokens at once.

`read_model_config` reads the `config.json` of a model of Hugging Face: decoders of equal layers
with a gated MLP (`data/model_configs.toml`). Attention counts all of a sequence, also where the
model has a window. Biases and the norms of queries and keys are `other_parameters`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError, suggestion
from luwu.base.foreign import parse_json, read_file
from luwu.base.limits import TOML_BYTES_MAX
from luwu.predict.hardware.software import data
from luwu.predict.hardware.values import whole_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder of equal layers."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    """Fewer than `heads`: several heads of queries share one of keys and values."""
    ffn: int
    """Inner width of the MLP, of one expert."""
    gated: bool = False
    """The MLP has three matrices (SwiGLU) and not two."""
    vocab: int
    tied: bool = True
    """Embedding and output share their weights."""
    experts: int = 1
    experts_used: int = 1
    """By each token."""
    head_width: int
    """Width of one head."""
    dropout: bool = False
    """Masks are kept, and passes over memory take longer."""
    other_parameters: int = 0
    """Parameters of no other kind: positions, a last norm; below zero if biases are missing."""
    source: str = ""

    @staticmethod
    def parse(place: str, name: str, entry: Mapping[str, Any]) -> Transformer:
        """An entry of the catalogue. Raises ConfigError, which names the key."""
        known = {each.name: each for each in dataclasses.fields(Transformer)}
        values: dict[str, Any] = {"name": name, "source": str(entry.get("source", ""))}
        for key, value in entry.items():
            if key in ("source", "tag", "date"):
                continue
            if key not in known or key == "name":
                raise ConfigError(f"{place}.{key} is unknown{suggestion(key, known)}")
            kind = bool if known[key].type == "bool" else int
            least = -math.inf if key == "other_parameters" else 1
            if type(value) is not kind or (kind is int and value < least):
                raise ConfigError(f"{place}.{key}: {value!r} is no {kind.__name__} above zero")
            values[key] = value
        values.setdefault("kv_heads", values.get("heads"))
        for needed in ("layers", "hidden", "heads", "vocab"):
            if values.get(needed) is None:
                raise ConfigError(f"{place}.{needed} is missing")
        values.setdefault("ffn", 4 * values["hidden"])
        values.setdefault("head_width", values["hidden"] // values["heads"])
        if not values["head_width"]:
            raise ConfigError(f"{place}.heads: {values['heads']} is more than {values['hidden']}")
        if values["heads"] % values["kv_heads"]:
            raise ConfigError(
                f"{place}.kv_heads: {values['kv_heads']} do not divide {values['heads']} heads"
            )
        if values.get("experts_used", 1) > values.get("experts", 1):
            raise ConfigError(f"{place}.experts_used: more than there are experts")
        return Transformer(**values)

    @property
    def mlp_matrices(self) -> int:
        """Matrices of hidden x ffn in one expert."""
        return 3 if self.gated else 2

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention: queries and output, keys and values."""
        return 2 * self.hidden * self.head_width * (self.heads + self.kv_heads)

    @property
    def mlp_parameters(self) -> int:
        """Parameters of one expert."""
        return self.mlp_matrices * self.hidden * self.ffn

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts of one layer."""
        return self.experts * self.mlp_parameters

    @property
    def router_parameters(self) -> int:
        """Parameters of one layer's router."""
        return self.hidden * self.experts if self.experts > 1 else 0

    @property
    def layer_parameters(self) -> int:
        """Of one layer: all experts, the router, norms, and biases unless the MLP is gated."""
        if self.gated:
            small = 2 * self.hidden
        else:
            small = 2 * self.head_width * self.kv_heads + self.ffn * self.experts + 7 * self.hidden
        return self.attention_parameters + self.expert_parameters + self.router_parameters + small

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All of them (without positions, which are thousandths, unless `other_parameters`)."""
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + embeddings + self.other_parameters

    @property
    def active_parameters(self) -> int:
        """Those that a token passes through, without looking up its embedding."""
        idle = (self.experts - self.experts_used) * self.mlp_parameters
        return self.layers * (self.layer_parameters - idle) + self.embedding_parameters

    def layer_operations(self, tokens: float, sequence: float, seen: float = 1.0) -> float:
        """Operations of a layer's forward on so many tokens (M1).

        `seen`: how much of the scores is counted: 1 in what is published as model operations, 1/2
        in kernels that leave out what a causal mask hides."""
        matrices = self.attention_parameters + self.experts_used * self.mlp_parameters
        matrices += self.router_parameters
        return 2 * matrices * tokens + self.attention_operations(tokens, sequence, seen)

    def attention_operations(self, tokens: float, sequence: float, seen: float = 1.0) -> float:
        """Operations of scores and their product with values, forward (M2)."""
        return 4 * tokens * sequence * self.heads * self.head_width * seen

    def head_operations(self, tokens: float) -> float:
        """Operations of the output layer's forward."""
        return 2 * tokens * self.embedding_parameters

    def step_operations(self, tokens: float, sequence: float, seen: float = 1.0) -> float:
        """Model operations of a step (M3): forward, and backward twice as many."""
        forward = self.layers * self.layer_operations(tokens, sequence, seen)
        return 3 * (forward + self.head_operations(tokens))


CONFIG_SUFFIX: Final = ".json"


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
    known, name = data("model_configs.toml"), fields.get("model_type")
    if not isinstance(name, str) or name not in known["types"]:
        raise ConfigError(
            f"{place}: model_type: {name!r} is not one of {', '.join(known['types'])}"
            f"{suggestion(str(name), known['types'])}; describe another model by --catalogue FILE"
        )
    kind = known["types"][name]
    if fields.get("mlp_only_layers") or fields.get("decoder_sparse_step", 1) != 1:
        raise ConfigError(
            f"{place}: mlp_only_layers, decoder_sparse_step: its layers are not equal; only models "
            "of equal layers can be predicted"
        )
    entry: dict[str, Any] = {"gated": True, "tied": bool(fields.get("tie_word_embeddings"))}
    needed = known["needed"] | kind["needed"]
    for field, key in (needed | known["optional"]).items():
        if fields.get(field) is not None:
            entry[key] = whole_of(f"{place}: ", fields, field)
        elif field in needed:
            raise ConfigError(f"{place}: {field} is missing; a {name} has {', '.join(needed)}")
    model = Transformer.parse(place, place, entry)
    return dataclasses.replace(model, other_parameters=_small_parameters(model, kind, fields))


def _small_parameters(
    model: Transformer, kind: Mapping[str, Any], fields: Mapping[str, Any]
) -> int:  # fmt: skip
    """Biases, norms of queries and keys, and the last norm."""
    queries = model.head_width * (model.heads + 2 * model.kv_heads)
    biases = [field for field in kind.get("biases", ()) if fields.get(field)]
    each = 2 * model.head_width if "head_dim" in kind["needed"] else 0
    each += queries if "is_biased" in kind else 0
    each += queries + model.hidden if "attention_bias" in biases else 0
    each += 2 * model.ffn + model.hidden if "mlp_bias" in biases else 0
    return model.layers * each + model.hidden
