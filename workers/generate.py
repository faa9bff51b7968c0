"""Text, or a loss on held-out data, from a GPT that is being trained: a reader, not a worker.

    python -m workers.generate --join luwu-runs/latest --prompt "def " --tokens 100
    python -m workers.generate --join luwu-runs/latest --loss --data held-out.txt

It reads the newest decided step, unit by unit, and holds that step while it writes: training goes
on and is not waited for. Each token is one pass over the units; keys and values of the tokens
before are kept. When the context is full, the last half of it is passed through anew.

Text goes to standard output, what it cost to standard error. One seed and one step give one text.
"""

from __future__ import annotations

import argparse
import codecs
import dataclasses
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import luwu
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.events import Recorder
from luwu.base.json_file import write_json
from luwu.base.parsers import seconds
from luwu.base.quantities import format_bytes
from luwu.base.seeds import derive
from luwu.join.connection import Connection, join
from workers.data import BYTE_VOCAB, Batches, load_corpus
from workers.gpt import GPT, GPTConfig, KeyValueCache, without_storage
from workers.options import DTYPES, HEAD_WIDTH, Options, env_int

INTERRUPTED_CODE = 130
_OF_JOB = ("layers", "width", "heads", "context", "tied", "dtype", "batch", "seed", "data")
"""Flags that mean what they mean to `workers/train.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """Options of this program. Raises ConfigError if they cannot work."""

    join: str
    """Run directory, connection file or URL."""
    prompt: bytes = b"def "
    tokens: int = 100
    temperature: float = 0.8
    """0: always the likeliest token."""
    loss: bool = False
    """No text: the mean loss over `batches` batches of the data."""
    batches: int = 8
    connect_timeout_s: float = 60.0
    grace_s: float = 20.0
    """How long an answer is waited for."""
    result: Path | None = None
    """JSON file for what was found."""
    job: Options
    """Size of the model, seed and data, as `workers/train.py` has them."""

    def __post_init__(self) -> None:
        if not self.join:
            raise ConfigError(
                "say which job to read: --join RUN_DIR, its connect.json, or the URL that luwu up "
                "printed"
            )
        for name in ("tokens", "batches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ConfigError(f"--temperature must not be negative, got {self.temperature}")
        if not self.loss and not 1 <= len(self.prompt) <= self.job.context:
            raise ConfigError(
                f"--prompt has {len(self.prompt)} bytes, each a token; the model takes 1 to "
                f"{self.job.context} (--context)"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate or evaluate as the command line says; returns the exit code."""
    try:
        options = parse_options(arguments)
        if "OMP_NUM_THREADS" in os.environ:
            torch.set_num_threads(max(1, env_int("OMP_NUM_THREADS", 1)))
        with torch.inference_mode():
            result = run(options, Recorder(role="reader"))
        if options.result is not None:
            write_json(options.result, result)
    except LuwuError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED_CODE
    return 0


def run(options: GenerateOptions, recorder: Recorder) -> dict[str, Any]:
    """Read the newest step, and write its text or take its loss."""
    model = without_storage(options.job.gpt(BYTE_VOCAB))
    with luwu.read_from(model, _connection(options)) as reading:
        recorder.event(
            "generate.begin", step=reading.version, model=_size(reading.model_bytes),
        )  # fmt: skip
        started_ns = SYSTEM_CLOCK.now_ns()
        found = _loss(model, reading, options) if options.loss else _text(model, options)
        elapsed_s = (SYSTEM_CLOCK.now_ns() - started_ns) / 1e9
        tokens = found["tokens"]
        recorder.event(
            "generate.end",
            step=reading.version,
            tokens=tokens,
            tokens_per_s=tokens / elapsed_s,
            read_per_token=_size(reading.bytes_read / tokens),
            weights_peak=_size(reading.weight_bytes.peak),
            read_before_use=f"{reading.early_count}/{reading.use_count}",
            **{key: found[key] for key in ("loss", "data") if key in found},
        )
        return {
            **found,
            "step": reading.version,
            "seconds": elapsed_s,
            "bytes_read": reading.bytes_read,
            "weight_bytes_peak": reading.weight_bytes.peak,
            "model_bytes": reading.model_bytes,
        }


def generate(
    model: torch.nn.Module, config: GPTConfig, prompt: Sequence[int], *, count: int,
    temperature: float, seed: int,
) -> Iterator[int]:  # fmt: skip
    """The tokens that follow the prompt; each one pass through the model."""
    generator = torch.Generator("cpu").manual_seed(derive(seed, "generate"))
    seen, new = list(prompt), list(prompt)
    cache = KeyValueCache(config)
    for _ in range(count):
        if cache.length + len(new) > config.context:
            cache = KeyValueCache(config)
            new = seen[-max(1, config.context // 2) :]
        logits_BTV = model(torch.tensor([new]), cache)
        token = sample(logits_BTV[0, -1], temperature, generator)
        seen.append(token)
        new = [token]
        yield token


def sample(logits_V: Tensor, temperature: float, generator: torch.Generator) -> int:
    """A token by its probability, the likeliest with a temperature of 0."""
    if temperature == 0:
        return int(logits_V.argmax())
    probabilities_V = (logits_V.double() / temperature).softmax(0)
    return int(torch.multinomial(probabilities_V, 1, generator=generator))


def mean_loss(model: torch.nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The mean loss over batches (tokens, next tokens), taken as `workers/train.py` takes it."""
    losses = []
    for x_BT, y_BT in batches:
        logits_BTV = model(x_BT)
        losses.append(float(F.cross_entropy(logits_BTV.flatten(0, 1).float(), y_BT.flatten())))
    return math.fsum(losses) / len(losses)


def _text(model: GPT, options: GenerateOptions) -> dict[str, Any]:
    """Write the prompt and what follows it as it comes."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    tokens = generate(
        model, model.config, options.prompt,
        count=options.tokens, temperature=options.temperature, seed=options.job.seed,
    )  # fmt: skip
    text = ""
    for part in _chain(options.prompt, tokens):
        characters = decoder.decode(part)
        text += characters
        print(characters, end="", flush=True)
    last = decoder.decode(b"", final=True)
    print(last, flush=True)
    return {"text": text + last, "tokens": options.tokens}


def _chain(prompt: bytes, tokens: Iterable[int]) -> Iterator[bytes]:
    yield prompt
    for token in tokens:
        yield bytes([token])


def _loss(model: GPT, reading: luwu.ReadModel, options: GenerateOptions) -> dict[str, Any]:
    job = options.job
    corpus = load_corpus(job.data)
    if corpus.vocab != BYTE_VOCAB:
        raise ConfigError(f"--data {job.data} has {corpus.vocab} different tokens, expected bytes")
    batches = Batches(corpus.tokens, context=job.context, seed=derive(job.seed, "validation"))
    loss = mean_loss(
        model,
        (
            batches.batch(index, rank=0, world_size=1, per_rank=job.batch)
            for index in range(options.batches)
        ),
    )
    is_same = reading.agreement.get("data") == corpus.digest
    return {
        "loss": loss,
        "tokens": options.batches * job.batch * job.context,
        "data": "the text the job trains on" if is_same else "held out",
    }


def parse_options(arguments: Sequence[str] | None = None) -> GenerateOptions:
    """Options of a command line. Raises ConfigError; argparse's own errors end with code 2."""
    parser = argparse.ArgumentParser(
        prog="generate.py",
        description="Write text with a GPT that is being trained, or take its loss.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    default = {each.name: each.default for each in dataclasses.fields(GenerateOptions)}
    of_job = {each.name: each.default for each in dataclasses.fields(Options)}
    add = parser.add_argument
    add(
        "--join", metavar="WHERE", default=os.environ.get("LUWU_CONNECT", ""),
        help="run directory, connection file or URL; LUWU_CONNECT unless given",
    )  # fmt: skip
    add("--prompt", metavar="TEXT", default="def ", help="what the text begins with")
    add("--tokens", type=int, default=default["tokens"], help="how many to add")
    add("--temperature", type=float, default=default["temperature"], help="0: the likeliest token")
    add("--loss", action="store_true", help="no text: the mean loss on --data")
    add("--batches", type=int, default=default["batches"], help="of --batch samples, for --loss")
    add("--connect-timeout", metavar="TIME", default="60s", help="wait so long for the job")
    add("--grace", metavar="TIME", default="20s", help="wait so long for an answer")
    add("--result", type=Path, help="write what was found to this JSON file")
    add("--layers", type=int, default=of_job["layers"], help="transformer blocks")
    add("--width", type=int, default=of_job["width"], help="width of the residual stream")
    add("--heads", type=int, help=f"attention heads; one for every {HEAD_WIDTH} of width")
    add("--context", type=int, default=of_job["context"], help="tokens in a sample")
    add("--tied", action="store_true", help="the token embedding is the output head too")
    add("--dtype", choices=[*DTYPES], default=of_job["dtype"], help="dtype of compute")
    add("--batch", type=int, default=of_job["batch"], help="samples in a batch of --loss")
    add("--seed", type=int, default=of_job["seed"], help="of the text, or of the samples")
    add("--data", type=Path, help="text for --loss; Python's standard library unless given")
    found = vars(parser.parse_args(arguments))
    job = Options(
        arm="luwu",
        **{name: found.pop(name) for name in _OF_JOB},
    )
    found["prompt"] = os.fsencode(found["prompt"])
    for name in ("connect_timeout", "grace"):
        found[f"{name}_s"] = seconds(found.pop(name), name)
    return GenerateOptions(job=job, **found)


def _connection(options: GenerateOptions) -> Connection:
    connection = join(options.join, timeout_s=options.connect_timeout_s)
    return dataclasses.replace(
        connection, connect_timeout_s=options.connect_timeout_s, grace_s=options.grace_s
    )


def _size(count: float) -> str:
    return format_bytes(count).replace(" ", "")


if __name__ == "__main__":
    sys.exit(main())
