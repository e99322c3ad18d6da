"""What the configuration's schema refuses, each with one line that names file, line, key and the fix."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from ruamel.yaml import YAML

from docs.generated.configuration import docstrings
from training.config import Config, ConfigError, Section, apply_override, load_texts
from training.config.families import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
SHAPE = """model:
  architecture: {architecture}
  vocab_size: 512
  hidden_size: 64
  intermediate_size: 128
  num_hidden_layers: 2
  num_attention_heads: 4
{more}
sequence_length: 32
data: {{source: /shared/text}}
train: {{seed: 7, steps: 20, global_batch_size: 8, learning_rate: 1.0e-2, eval_every: 10, eval_sequences: 8}}
"""
KV = "  num_key_value_heads: 2"
WEIGHTS = f"{KV}\n  weights: /shared/models/tiny"
LORA = "lora: {rank: 8, alpha: 16, target_modules: [q_proj, v_proj]}"
SHORT = "  bert: {max_position_embeddings: 16}"
BERT = "  bert: {max_position_embeddings: 32}"
MASKING = "masking: {most: 5}"


def texts(architecture: str, *more: str) -> dict[str, tuple[str, str]]:
    """A configuration as `{layer: (file name, text)}`; what is indented goes into `model:`."""
    model = SHAPE.format(architecture=architecture, more="\n".join(more))
    cell = "parallel: {micro_batch_size: 2}\ncheckpoint: {every: 5}\n"
    return {"model": ("model.yaml", model), "hardware": ("hardware.yaml", ""), "cell": ("cell.yaml", cell)}


*_FIRST, _LAST = (f"'{name}'" for name in FAMILIES)
KNOWN = f"{', '.join(_FIRST)} or {_LAST}"


@pytest.mark.parametrize(
    ("given", "task"),
    [
        (("llama", KV), "training.pretrain"),
        (("llama", WEIGHTS), "training.finetune"),
        (("llama", WEIGHTS, LORA), "training.finetune"),
        (("llama", f"{KV}\n  weights: run:cpu-llama-tiny-train", LORA), "training.finetune"),
        (("qwen2", f"{KV}\n  weights: someone/some.model-1b@0123abc", LORA), "training.finetune"),
        (("bert", BERT, MASKING), "training.bert"),
    ],
)
def test_each_configuration_has_one_entry_point(given: tuple[str, ...], task: str) -> None:
    config = load_texts(texts(*given))
    assert config.task == task
    config.require_task(task)
    for other in {"training.pretrain", "training.finetune", "training.bert"} - {task}:
        with pytest.raises(ConfigError, match=f"{other} does not train this configuration, {task} does"):
            config.require_task(other)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("llama",), "model.yaml:1: model.num_key_value_heads is missing"),
        (("lama", KV), f"model.yaml:2: model.architecture is 'lama': input should be {KNOWN}; did you mean"
         " llama?"),
        (("deepseek", KV), f"model.yaml:2: model.architecture is 'deepseek': input should be {KNOWN}; to"
         " add a family, see docs/extending.md#a-family"),
        (("llama", f"{KV}\n  sliding_window: 9"), "model.yaml:9: architecture llama has no sliding_window"),
        (("mixtral", KV), "model.yaml:2: architecture mixtral needs model.num_local_experts"),
        (("phi3", WEIGHTS, LORA), "model.yaml:10: lora.target_modules names q_proj, which phi3"),
        (("llama", f"{KV}\n  weights: models/tiny"), "model.yaml:9: model.weights is 'models/tiny': write an"
         " absolute directory, run:<job>, or <organisation>/<name>@<revision>"),
        (("llama", KV, LORA), "model.yaml:9: lora adapts a trained model: model.weights is missing"),
        (("llama", WEIGHTS, LORA.replace("rank", "r")), "model.yaml:10: unknown key lora.r"),
        (("llama", WEIGHTS, LORA.replace("q_proj", "q_prj")),
         "model.yaml:10: lora.target_modules.0 is 'q_prj'"),
        (("llama", WEIGHTS, LORA.replace("q_proj", "v_proj")), "model.yaml:10: lora: target_modules names a"
         " module twice"),
        (("llama", KV, MASKING), "model.yaml:9: masking is for architecture bert only"),
        (("llama", f"{KV}\n{BERT}"), "model.yaml:9: model.bert is for architecture bert only"),
        (("bert", BERT), "model.yaml:2: architecture bert needs the section masking"),
        (("bert", MASKING), "model.yaml:2: architecture bert needs the section model.bert"),
        (("bert", f"{BERT}\n{KV}", MASKING), "model.yaml:9: architecture bert has no num_key_value_heads;"
         " every head has its own"),
        (("bert", f"{BERT}\n  rms_norm_eps: 1.0e-5", MASKING), "model.yaml:9: architecture bert has no"
         " rms_norm_eps; use model.bert.layer_norm_eps"),
        (("bert", SHORT, MASKING), "model.yaml:10: sequence_length 32 is above"
         " model.bert.max_position_embeddings 16"),
        (("bert", BERT, "masking: {most: 33}"), "model.yaml:9: masking.most 33 is above sequence_length 32"),
        (("bert", BERT.replace("embeddings", "embedings"), MASKING), "model.yaml:8: unknown key"
         " model.bert.max_position_embedings; did you mean model.bert.max_position_embeddings?"),
        (("bert", BERT, MASKING, LORA),
         "model.yaml:10: lora is for causal models only: architecture is bert"),
    ],
)  # fmt: skip
def test_inconsistent_sections_are_one_line(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_texts(texts(*given))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("9" * 300, "--set data.source: a number of 300 characters"),
        ("0x" + "f" * 300, "--set data.source: a number of 302 characters"),
        ("[" * 200, "--set data.source: more than 100 mappings and lists in each other"),
        ("{a", "--set data.source={a: the value is not YAML; as a text: --set \"data.source='{a'\""),
        ("*.txt", "--set data.source=*.txt: the value is not YAML; as a text: --set \"data.source='*.txt'\""),
    ],
)
def test_a_value_that_is_not_read_is_one_line(value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_override(texts("llama", KV), f"data.source={value}")
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["*'s.txt", '*$(id)"`!.txt'])
def test_the_text_that_an_error_proposes_is_taken(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_override(texts("llama", KV), f"data.source={name}")
    proposed = shlex.split(str(caught.value).partition("as a text: ")[2])
    assert proposed[0] == "--set"
    assert load_texts(apply_override(texts("llama", KV), proposed[1])).data.source == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: [", "m:1: not valid YAML"),
        ("- a", "m:1: the file must be a mapping of sections"),
        ("train: {}\ntrain: {}", "m:2: not valid YAML: found duplicate key"),
    ],
)
def test_an_override_of_a_broken_file_is_the_error_of_the_file(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_override({**texts("llama", KV), "model": ("m", text)}, "train.steps=3")
    assert str(caught.value).startswith(said)


def test_a_long_word_of_hexadecimal_letters_is_text() -> None:
    given = apply_override(texts("llama", KV), f"data.source={'a' * 200}")
    assert load_texts(given).data.source == "a" * 200


@pytest.mark.parametrize("key", ["reshard_after_forward=true", "reduce_precision=bf16", "offload=cpu"])
def test_keys_of_sharded_models_are_refused_without_sharding(key: str) -> None:
    given = apply_override(texts("llama", KV), f"parallel.{key}")
    name = key.partition("=")[0]
    with pytest.raises(ConfigError, match=f"parallel.{name} is for sharded models, but parallel.sharding is ddp"):
        load_texts(given)
    assert load_texts(apply_override(given, "parallel.sharding=hsdp")).parallel.sharded


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "checkpoint.keep_every=7",
            "checkpoint.keep_every 7 is not a multiple of checkpoint.every {every}; nearest value: ",
        ),
        ("checkpoint.keep_best=1", "nearest value of train.eval_every: {every}"),
        ("checkpoint.keep=1", "checkpoint.keep"),
    ],
)
def test_keep_rules_that_cannot_hold_are_refused(override: str, said: str) -> None:
    given = apply_override(texts("llama", KV), "train.eval_every=7")
    every = load_texts(given).checkpoint.every
    with pytest.raises(ConfigError, match=said.format(every=every)):
        load_texts(apply_override(given, override))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("checkpoint.keep=null", "checkpoint.keep is None: a whole number is needed; nearest value: 2"),
        ("checkpoint.keep=true", "checkpoint.keep is True: a whole number is needed; nearest value: 2"),
        ("checkpoint.every=5.4", "checkpoint.every is 5.4: a whole number is needed; nearest value: 5"),
        ("checkpoint.every=[5]", "checkpoint.every is [5]: a whole number is needed"),
        ("checkpoint.asynchronous=3", "checkpoint.asynchronous is 3: true or false is needed; nearest value: false"),
        ("checkpoint.asynchronous=yes", "is 'yes': true or false is needed; nearest value: true"),
        ("data.document_mask=no", "data.document_mask is 'no': true or false is needed; nearest value: false"),
        ("checkpoint.keep_bad_days=-1", "should be greater than or equal to 0; nearest value: 0.0"),
        ("device.compile=true", "is True: input should be 'auto', 'on' or 'off'; nearest value: on"),
        ("parallel.sharding=FSDP", "is 'FSDP': input should be 'ddp', 'fsdp' or 'hsdp'; did you mean fsdp?"),
        ("parallel.micro_batch_size=3", "is not a multiple of parallel.micro_batch_size 3; nearest value: 2"),
        ("model.num_attention_heads=5", "is not a multiple of num_attention_heads 5; nearest value: 4"),
        ("model.num_key_value_heads=3", "is not a multiple of num_key_value_heads 3; nearest value: 2"),
        ("train.lr=1e-4", "unknown key train.lr; did you mean train.learning_rate?"),
        ("retry=5", "retry is 5: a mapping of these keys is needed: classes, most"),
        ("parallel.reshard_after_forward=x", "is 'x': one of these is needed: 'auto', true or false, a whole number"),
        ("sample.prompts=[1]", "sample.prompts.0 is 1: a text is needed"),
        ("train.on_spike=rollback:5000", "nearest value: rollback:999"),
        ("train.on_nan=Rollback:3", "nearest value: rollback:3"),
        (r'upload={to: "s3://models/a\e[31m"}', "3 to 63 characters); nearest value: s3://models/a[31m"),
        ("train.warmup_steps=999", "train.warmup_steps 999 is not below train.steps {steps}; nearest value: {below}"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_one_error(override: str, said: str) -> None:
    given = texts("llama", KV)
    steps = load_texts(given).train.steps
    with pytest.raises(ConfigError) as caught:
        load_texts(apply_override(given, override))
    assert str(caught.value).endswith(said.format(steps=steps, below=steps - 1))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.beta2=0.999", "with beta2 0.999; nearest value of train.beta2: 0.99"),
        ("train.optimizer=lamb", "bf16 is for adamw only, optimizer is lamb"),
    ],
)
def test_moments_in_bf16_are_refused_where_they_cannot_move(override: str, said: str) -> None:
    given = apply_override(texts("llama", KV), "train.moment_precision=bf16")
    assert load_texts(given).train.moment_precision == "bf16"
    with pytest.raises(ConfigError, match=said):
        load_texts(apply_override(given, override))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("parallel.sharding=ddp",), "parallel.tensor needs parallel.sharding fsdp or hsdp, which is ddp"),
        (("parallel.offload=cpu",), "parallel.offload cpu does not work with parallel.tensor; write none"),
        (("model.tie_word_embeddings=true",), "does not work with model.tie_word_embeddings; nearest value: 1"),
        (("model.architecture=qwen3",), "does not work with model.architecture qwen3; nearest value: 1"),
        (("train.optimizer=lamb",), "does not work with train.optimizer lamb; nearest value: 1"),
        (("parallel.tensor=4",), "parallel.tensor 4 does not divide model.num_key_value_heads 2; nearest value: 2"),
    ],
)
def test_products_in_common_are_refused_where_they_do_not_work(overrides: tuple[str, ...], said: str) -> None:
    given = apply_override(texts("llama", KV), "parallel.sharding=fsdp")
    given = apply_override(given, "parallel.tensor=2")
    assert load_texts(given).accumulation(4) == 2  # four ranks have two shares of 8 samples
    for override in overrides:
        given = apply_override(given, override)
    with pytest.raises(ConfigError, match=said):
        load_texts(given)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("device.type=neuron", "device.attention=sdpa"), "device.attention is sdpa, but Neuron's .*: eager"),
        (("device.type=neuron", "device.compile=on"), "device.compile is on, but Neuron compiles .*: off"),
        (("device.type=neuron", "parallel.sharding=fsdp"), "parallel.sharding is fsdp, but Neuron has .*: ddp"),
        (("device.type=neuron", "parallel.activation_checkpointing=selective"), "is selective, but Neuron .*: full"),
        (
            ("model.attention_dropout=0.1", "device.attention=flex_attention"),
            "flex_attention, which has no dropout, .*sd",
        ),
        (("device.compile=off", "parallel.activation_checkpointing=budget:0.5"), "blocks are not compiled; .*: selec"),
        (
            ("device.type=cpu", "device.float8=rowwise"),
            "float8 is rowwise, which is for compiled blocks in bf16 .*: off",
        ),
        (
            ("device.type=cuda", "device.precision=fp32", "device.float8=rowwise"),
            "for compiled blocks in bf16 on a card",
        ),
        (("device.type=cuda", "device.compile=off", "device.float8=rowwise"), "for compiled blocks in bf16 on a card"),
    ],
)
def test_what_a_device_cannot_carry_out_is_refused_on_every_machine(overrides: tuple[str, ...], said: str) -> None:
    """The trainer knew these in its pods only, so that preflight let them pass."""
    given = texts("llama", KV)
    for override in overrides[:-1]:
        given = apply_override(given, override)
    load_texts(given)
    with pytest.raises(ConfigError, match=said):
        load_texts(apply_override(given, overrides[-1]))


def test_bert_has_as_many_key_heads_as_heads() -> None:
    config: Config = load_texts(texts("bert", BERT, MASKING))
    assert config.model.num_key_value_heads == config.model.num_attention_heads == 4
    assert config.masking is not None
    assert config.masking.fraction == 0.15


def test_overrides_reach_optional_sections() -> None:
    """An optional section can be created key by key or removed as a whole; a required one cannot."""
    plain = texts("llama", WEIGHTS)
    with_rank = apply_override(plain, "lora.rank=8")
    made = apply_override(apply_override(with_rank, "lora.alpha=16"), "lora.target_modules=[q_proj]")
    config = load_texts(made)
    assert config.lora is not None
    assert (config.lora.rank, config.lora.alpha, config.lora.target_modules) == (8, 16, ("q_proj",))
    assert load_texts(apply_override(made, "lora=null")).lora is None
    with pytest.raises(ConfigError, match="train is a section; set one of seed"):
        apply_override(plain, "train=null")


def described(section: type[Section], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key with its description, sections included."""
    texts = docstrings(section)
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", texts.get(name, "")
        for part in get_args(field.annotation) or (field.annotation,):
            if isinstance(part, type) and issubclass(part, Section):
                yield from described(part, f"{prefix}{name}.")


def test_every_key_has_whole_sentences() -> None:
    """docs/reference/configuration.md is generated from these."""
    keys = dict(described(Config))
    assert {"sequence_length", "model.rope_scaling.factor", "data.stream.lanes", "upload.to"} <= keys.keys()
    wrong = {key: text for key, text in keys.items() if not re.fullmatch(r"[`A-Z].*[^.]\.", text, re.S)}
    assert not wrong


def test_a_key_without_a_sentence_is_found() -> None:
    """The control."""

    class Bare(Section):
        known: int = 1
        """A number."""
        bare: int = 2

    assert dict(described(Bare)) == {"known": "A number.", "bare": ""}


def test_a_features_file_owns_the_section_data() -> None:
    """data.yaml takes the place of the whole section: nothing of model.yaml's is left in it."""
    own = "data:\n  source: /shared/stream\n"
    layers = texts("llama", KV) | {"data": ("data.yaml", own)}
    layers["model"] = (
        "model.yaml",
        layers["model"][1].replace("/shared/text}", "/shared/text, packing: false}"),
    )
    config = load_texts(layers)
    assert (config.data.source, config.data.packing) == ("/shared/stream", True)
    changed = apply_override(layers, "data.tokenizer=/shared/words")
    assert changed["model"] == layers["model"]
    assert load_texts(changed).data.tokenizer == "/shared/words"
    for text, said in (
        (own + "  sauce: 1\n", "data.yaml:3: unknown key data.sauce; did you mean data.source?"),
        ("data: {text_field: x}\n", "data.yaml:1: data.source is missing"),
        ("train: {seed: 1}\n", "data.yaml:1: train belongs in model.yaml, not in data.yaml"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            load_texts(layers | {"data": ("data.yaml", text)})


def test_a_list_can_be_replaced_after_another_key() -> None:
    """The list's comment stood at the end of the line behind it after a first change, which then had two keys."""
    text = (ROOT / "overlays/model/llama-tiny-lora/model.yaml").read_text(encoding="utf-8")
    given = {"model": ("model.yaml", text)}
    for override in ("train.steps=12", "sample.prompts=[one]", "sample.max_new_tokens=8"):
        given = apply_override(given, override)
    sample = YAML(typ="safe").load(given["model"][1])["sample"]
    assert sample == {"prompts": ["one"], "max_new_tokens": 8, "temperature": 0.8}
