"""`transformers.Trainer` with one worker in this process: what it honours, and what it refuses.

Two workers need two processes, for Accelerate keeps one state in each: test_hugging_face_page.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import luwu
from luwu.base.errors import ConfigError, StepAborted
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import in_cluster
from tests.helpers.training_harness import worker
from tests.integrations.hugging_face import finetune, luwu_trainer, needs_hf, peft, transformers

pytestmark = needs_hf
STEPS = 6


def make_model(lora: int = 0) -> Any:
    return finetune.make_model(finetune.parse_options(["--lora", str(lora)]))


def sharded(lora: int = 0) -> Any:
    model = make_model(lora)
    luwu.fully_shard_each(model, finetune.BLOCKS["llama"])
    return model


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(97, 123, (count, 16), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def arguments_of(directory: Path, **changes: Any) -> Any:
    values = {
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "max_steps": STEPS,
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 4,
    }
    return transformers.TrainingArguments(str(directory / "output"), **{**values, **changes})


def history(trainer: Any, name: str) -> list[float]:
    """Everything that was logged under a name."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def compare(directory: Path, *, lora: int = 0, abs_max: float, **changes: Any) -> None:
    """Train with Trainer alone and with LuwuTrainer; evaluate before and after."""

    def train(kind: Any, model: Any) -> dict[str, list[float]]:
        arguments = arguments_of(directory, **changes)
        trainer = kind(model, arguments, train_dataset=rows(32), eval_dataset=rows(8))
        before = trainer.evaluate()
        trainer.train()
        after = trainer.predict(rows(8)).metrics
        evaluated = [before["eval_loss"], after["test_loss"]]
        names = ("loss", "grad_norm", "learning_rate")
        return {"evaluated": evaluated, **{name: history(trainer, name) for name in names}}

    expected = train(transformers.Trainer, make_model(lora))

    def work(_: int) -> Any:
        return train(luwu_trainer.LuwuTrainer, sharded(lora))

    (found,) = in_cluster(directory, work).results
    assert [len(values) for values in expected.values()] == [2, STEPS, STEPS, STEPS]
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=abs_max), name
    assert expected["evaluated"][1] < expected["evaluated"][0]


CASES: dict[str, dict[str, Any]] = {
    "no clipping": {"max_grad_norm": 0.0},
    "activation checkpointing": {"activation_checkpointing": True},
    "sgd": {"optim": "sgd", "optim_args": "momentum=0.9", "learning_rate": 0.05},
    "accumulation": {"gradient_accumulation_steps": 2, "weight_decay": 0.1},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.feature("Trainer")
def test_transformers_trainer_with_one_worker(case: str, tmp_path: Path) -> None:
    """I4. Goal: losses, norms, schedule and evaluation are those of Trainer alone; 1e-5: the norm
    is summed in another order."""
    compare(tmp_path, abs_max=1e-5, **CASES[case])


@pytest.mark.feature("Trainer")
def test_transformers_trainer_with_autocast(tmp_path: Path) -> None:
    """Goal: bf16=True is autocast, over weights in float32, as with Trainer alone; 2e-2: a product
    may be rounded the other way."""
    compare(tmp_path, abs_max=2e-2, bf16=True)


@pytest.mark.feature("Trainer")
def test_transformers_trainer_lora(tmp_path: Path) -> None:
    """Goal: LoRA through Trainer, with a group that holds no parameter."""
    compare(tmp_path, abs_max=1e-5, lora=2)


@pytest.mark.feature("Trainer")
def test_transformers_trainer_takes_an_optimizer_of_luwu(tmp_path: Path) -> None:
    """Goal: an optimizer that Trainer has no name for, by optimizers= and by its class."""

    def work(_: int) -> None:
        lion = (luwu.optim.Lion, {"lr": 1e-3})
        trainer = luwu_trainer.LuwuTrainer(
            sharded(), arguments_of(tmp_path), train_dataset=rows(32), optimizer_cls_and_kwargs=lion
        )
        trainer.train()
        assert isinstance(trainer.optimizer.optimizer, luwu.optim.Lion)
        assert len(history(trainer, "loss")) == STEPS

    in_cluster(tmp_path, work)


def stop_at(step: int) -> Any:
    """A callback that ends training after a step, with the schedule of the whole run."""

    class StopAt(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = state.global_step == step
            return control

    return StopAt()


@pytest.mark.feature("Trainer")
def test_transformers_trainer_goes_on_where_the_state_is(tmp_path: Path) -> None:
    """Goal: a run that is resumed has the losses and the schedule of one that was not stopped, in
    the middle of an epoch and of an accumulation of batches, and trains no step twice."""
    changes = {"gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine", "max_steps": 12}
    plain = transformers.Trainer(
        make_model(), arguments_of(tmp_path, **changes), train_dataset=rows(28)
    )
    plain.train()
    expected = history(plain, "loss")
    assert len(expected) == 12

    def train(stop: int) -> Any:
        arguments = arguments_of(tmp_path, **changes)
        trainer = luwu_trainer.LuwuTrainer(
            sharded(), arguments, train_dataset=rows(28), callbacks=[stop_at(stop)]
        )
        trainer.train()
        return trainer

    state = tmp_path / "state"
    (first,) = in_cluster(tmp_path, lambda _: train(5), state=state).results
    (rest,) = in_cluster(tmp_path, lambda _: train(99), state=state, resume=True).results
    found = history(first, "loss") + history(rest, "loss")
    assert found == pytest.approx(expected, abs=1e-5)
    rates = history(first, "learning_rate") + history(rest, "learning_rate")
    assert rates == pytest.approx(history(plain, "learning_rate"))
    assert rest.state.global_step == 12


# ---------------------------------------------------------------------------- refusals


@pytest.fixture
def model() -> Iterator[Any]:
    """That of a worker in this thread."""
    with worker(FakeNetwork(1)):
        made = sharded()
        yield made
        if not made.luwu_session.is_final:  # a session can end well with an optimizer only
            luwu.optim.SGD(made.parameters(), lr=0.1)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "fp16": ({"fp16": True}, r"fp16=True.*GradScaler.*bf16=True"),
    "save_strategy": (
        {"save_strategy": "steps"},
        r'save_strategy="no".*luwu export.*save_only_model',
    ),
    "bf16_full_eval": ({"bf16_full_eval": True}, r"cast the weights"),
    "fp16_full_eval": ({"fp16_full_eval": True}, r"cast the weights"),
    "torch_compile": ({"torch_compile": True}, r"torch_compile=True"),
    "auto_find_batch_size": ({"auto_find_batch_size": True}, r"per_device_train_batch_size"),
    "ddp": ({"ddp_find_unused_parameters": True}, r"DistributedDataParallel"),
    "fsdp": ({"fsdp": "full_shard"}, r"fsdp=.*luwu\.fully_shard"),
    "liger": ({"use_liger_kernel": True}, r"before luwu\.fully_shard|patch the model before"),
    "jit": ({"enable_jit_checkpoint": True}, r"enable_jit_checkpoint.*luwu export"),
    "resume": ({"resume_from_checkpoint": "somewhere"}, r"resume_from_checkpoint.*state directory"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.feature("arguments of Trainer that have no meaning here")
def test_transformers_trainer_refuses_arguments(case: str, model: Any, tmp_path: Path) -> None:
    """Goal: what cannot be honoured is refused with a sentence that says what to do instead."""
    changes, message = REFUSED[case]
    arguments = arguments_of(tmp_path)
    for name, value in changes.items():
        setattr(arguments, name, value)  # some of them want a GPU, or a package, when constructed
    with pytest.raises(ConfigError, match=message):
        luwu_trainer.LuwuTrainer(model, arguments)


@pytest.mark.feature("arguments of Trainer that have no meaning here")
def test_transformers_trainer_refuses_optimizers(model: Any, tmp_path: Path) -> None:
    other = luwu_trainer.LuwuTrainer(
        model, arguments_of(tmp_path, optim="adafactor"), train_dataset=rows(8)
    )
    with pytest.raises(ConfigError, match=r"optim='adafactor'.*adamw_torch.*luwu\.optim\.Lion"):
        other.train()
    plain = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ConfigError, match=r"got a SGD, which would update nothing.*luwu\.optim"):
        luwu_trainer.LuwuTrainer(model, arguments_of(tmp_path), optimizers=(plain, None))
    given = (torch.optim.SGD, {"lr": 0.1})
    trainer = luwu_trainer.LuwuTrainer(
        model, arguments_of(tmp_path), train_dataset=rows(8), optimizer_cls_and_kwargs=given
    )
    with pytest.raises(ConfigError, match=r"got a SGD, which would update nothing"):
        trainer.train()


@pytest.mark.feature("arguments of Trainer that have no meaning here")
def test_transformers_trainer_refuses_models(model: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got a LlamaForCausalLM.*luwu\.fully_shard"):
        luwu_trainer.LuwuTrainer(make_model(), arguments_of(tmp_path))
    with pytest.raises(ConfigError, match=r"model_init.*model="):
        luwu_trainer.LuwuTrainer(args=arguments_of(tmp_path), model_init=make_model)
    with pytest.raises(ConfigError, match=r'without args.*save_strategy="no"'):
        luwu_trainer.LuwuTrainer(model)


@pytest.mark.feature("arguments of Trainer that have no meaning here")
def test_transformers_trainer_refuses_a_checkpoint(model: Any, tmp_path: Path) -> None:
    trainer = luwu_trainer.LuwuTrainer(model, arguments_of(tmp_path), train_dataset=rows(8))
    with pytest.raises(ConfigError, match=r"resume_from_checkpoint.*state directory"):
        trainer.train(resume_from_checkpoint=True)


@pytest.mark.feature("arguments of Trainer that have no meaning here")
def test_transformers_trainer_refuses_a_plateau_in_the_middle(model: Any, tmp_path: Path) -> None:
    """Goal: a schedule that depends on what was measured is not taken up at a later step."""
    optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
    model(**{name: row[None] for name, row in rows(1)[0].items()}).loss.backward()
    optimizer.step()
    arguments = arguments_of(
        tmp_path, lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps", eval_steps=1
    )
    trainer = luwu_trainer.LuwuTrainer(
        model, arguments, train_dataset=rows(8), eval_dataset=rows(2),
        optimizers=(optimizer, None),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"state is at step 1.*lr_scheduler_type"):
        trainer.train()


@pytest.mark.feature("arguments of Trainer that have no meaning here")
def test_transformers_trainer_refuses_unsplit_data(tmp_path: Path) -> None:
    """Goal: where Accelerate does not see the other workers, each would train on all data."""
    with worker(FakeNetwork(2)) as session:
        with pytest.raises(ConfigError, match=r"1 processes.*worker 0 of 2.*use_cpu=True"):
            luwu_trainer.LuwuTrainer(sharded(), arguments_of(tmp_path))
        session.is_finished = True  # no other rank comes
        session.nic.close()


@pytest.mark.feature("arguments of Trainer that have no meaning here")
def test_transformers_trainer_says_that_it_cannot_go_back(tmp_path: Path) -> None:
    network = FakeNetwork(1)
    with worker(network):
        network.fail_at("commit", step=1)
        arguments = arguments_of(tmp_path)
        trainer = luwu_trainer.LuwuTrainer(sharded(), arguments, train_dataset=rows(32))
        with pytest.raises(StepAborted) as caught:
            trainer.train()
        assert "cannot go back to a step" in caught.value.__notes__[0]


# ---------------------------------------------------------------------------- saving


@pytest.mark.parametrize("lora", [0, 2])
@pytest.mark.feature("Trainer")
def test_transformers_trainer_saves_weights(lora: int, tmp_path: Path) -> None:
    """Goal: `save_model`, and save_only_model=True while training runs, write what
    `from_pretrained` reads: the weights after the steps that were taken."""
    inputs = {name: torch.stack([row[name] for row in rows(4)]) for name in rows(1)[0]}
    saving = {"save_strategy": "steps", "save_steps": 3, "save_only_model": True}

    def work(_: int) -> float:
        model = sharded(lora)
        trainer = luwu_trainer.LuwuTrainer(
            model, arguments_of(tmp_path, **saving), train_dataset=rows(32)
        )
        trainer.train()
        trainer.save_model(str(tmp_path / "saved"))
        with torch.no_grad():
            loss: float = model(**inputs).loss.item()
        return loss

    def loss_of(directory: Path) -> float:
        if lora:
            loaded: Any = peft.PeftModel.from_pretrained(make_model(), str(directory))
        else:
            loaded = transformers.LlamaForCausalLM.from_pretrained(directory, local_files_only=True)
        with torch.no_grad():
            return float(loaded(**inputs).loss)

    (loss,) = in_cluster(tmp_path, work).results
    assert loss_of(tmp_path / "saved") == pytest.approx(loss, abs=1e-6)
    assert loss_of(tmp_path / "output" / "checkpoint-6") == pytest.approx(loss, abs=1e-6)
    assert loss_of(tmp_path / "output" / "checkpoint-3") != pytest.approx(loss, abs=1e-3)
