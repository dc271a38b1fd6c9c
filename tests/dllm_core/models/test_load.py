"""Reading model folders: whole and sharded, in every precision, and what is said when something does not fit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dllm_core.config import ModelConfig
from dllm_core.errors import CheckpointError, ConfigError
from dllm_core.models.base import Model
from dllm_core.models.dense import dense_logits
from dllm_core.models.load import describe, load
from dllm_core.models.transformer import Transformer
from tests.checkpoints import make_checkpoint, random_weights, reserved_id, settings, tokenizer_ids

TOKENS = torch.tensor([[7, 300, 2, 41, 2, 999]])


def loaded(folder: Path, dtype: Any = "float32") -> Model:
    return load(ModelConfig(path=str(folder), dtype=dtype, device="cpu"))[0]


def change_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def rename_special(file: Path, **changes: Any) -> None:
    """Change fields of the mask token's entry in tokenizer.json."""
    tokenizer = json.loads(file.read_text())
    next(t for t in tokenizer["added_tokens"] if t["content"] == "<|mdm_mask|>").update(changes)
    file.write_text(json.dumps(tokenizer))


def test_every_parameter_holds_its_stored_tensor(tmp_path: Path) -> None:
    model = loaded(make_checkpoint(tmp_path))
    assert isinstance(model, Transformer)
    stored = random_weights(settings())
    assert {name for name, _ in model.weight_names()} == stored.keys()
    for name, parameter in model.weight_names():
        assert torch.equal(parameter, stored[name]), name
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_sharded_checkpoint_equals_the_whole_one(tmp_path: Path) -> None:
    whole, sharded = make_checkpoint(tmp_path / "whole"), make_checkpoint(tmp_path / "sharded", shards=3)
    assert len(list(sharded.glob("model-0000?-of-00003.safetensors"))) == 3
    assert torch.equal(dense_logits(loaded(whole), TOKENS), dense_logits(loaded(sharded), TOKENS))


@pytest.mark.parametrize("shards", [1, 3])
def test_reading_weights_is_watched_tensor_by_tensor(tmp_path: Path, shards: int) -> None:
    folder, told = make_checkpoint(tmp_path, shards=shards, dtype=torch.bfloat16), list[tuple[int, int]]()
    load(ModelConfig(path=str(folder), dtype="float32", device="cpu"), lambda *seen: told.append(seen))
    sizes = [2 * tensor.numel() for tensor in random_weights(settings()).values()]
    assert {total for _, total in told} == {sum(sizes)}
    steps = [after - before for (before, _), (after, _) in zip([(0, 0), *told], told, strict=False)]
    assert sorted(steps) == sorted(sizes)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_weights_are_converted_to_the_precision_asked_for(tmp_path: Path, dtype: str, stored: torch.dtype) -> None:
    model = loaded(make_checkpoint(tmp_path, dtype=stored), dtype)
    assert isinstance(model, Transformer)
    asked = getattr(torch, dtype)
    for name, tensor in random_weights(settings(), stored).items():
        assert torch.equal(dict(model.weight_names())[name], tensor.to(asked)), name
    logits = dense_logits(model, TOKENS)
    assert logits.dtype == asked
    exact = dense_logits(loaded(tmp_path, "float64"), TOKENS)
    error = (logits - exact)[exact.isfinite()].abs().max()
    assert error < {"float64": 1e-12, "float32": 1e-4, "bfloat16": 0.2, "float16": 0.02}[dtype]


def test_end_of_answer_ids_are_gathered_from_every_file_that_names_one(tmp_path: Path) -> None:
    end, turn, start = (reserved_id(f"<|{name}|>") for name in ("endoftext", "eot_id", "startoftext"))
    assert loaded(make_checkpoint(tmp_path / "a")).eos_ids == (end, turn)  # the turn's end is read off the template
    assert loaded(make_checkpoint(tmp_path / "b", eos=[500, turn])).eos_ids == (end, 500, turn)
    assert loaded(make_checkpoint(tmp_path / "c", eos=501)).eos_ids == (end, 501, turn)
    assert loaded(make_checkpoint(tmp_path / "d", eos_token_id=[start, 502])).eos_ids == (start, 502, end, turn)
    base = make_checkpoint(tmp_path / "e")
    (base / "chat_template.jinja").unlink()
    assert loaded(base).eos_ids == (end,)


def test_ids_past_the_tokenizers_end_are_never_generated(tmp_path: Path) -> None:
    logits = dense_logits(loaded(make_checkpoint(tmp_path)), TOKENS)
    blocked = logits.isneginf().all(1)[0].nonzero().flatten().tolist()
    end = tokenizer_ids()
    assert blocked == [reserved_id("<|mdm_mask|>"), end, end + 1, end + 2]


def test_a_model_is_described_without_reading_its_weights(tmp_path: Path) -> None:
    described = describe(make_checkpoint(tmp_path, shards=2))
    assert (described.family, described.has_template) == ("llada", True)
    assert (described.mask_id, described.eos_ids) == (2, (1, 5))
    assert (described.shape.layers, described.shape.kv_heads, described.shape.head_dim) == (2, 2, 8)
    count = sum(tensor.numel() for tensor in random_weights(settings()).values())
    assert described.parameters == count
    assert described.weight_bytes("bfloat16") == 2 * count


def test_all_that_does_not_fit_is_told_at_once(tmp_path: Path) -> None:
    weights = random_weights(settings())
    block = "model.transformer.blocks.1"
    del weights["model.transformer.ln_f.weight"]
    weights[f"{block}.q_proj.weight"] = torch.zeros(32, 31)
    weights[f"{block}.k_norm.weight"] = torch.zeros(32)
    with pytest.raises(CheckpointError) as caught:
        loaded(make_checkpoint(tmp_path, weights))
    message = str(caught.value)
    assert "model.transformer.ln_f.weight is missing" in message
    assert f"{block}.k_norm.weight is unexpected" in message
    assert f"{block}.q_proj.weight has shape [32, 31] where config.json implies [32, 32]" in message


def test_a_long_list_of_misfits_is_cut_and_counted(tmp_path: Path) -> None:
    weights = {name.removeprefix("model."): tensor for name, tensor in random_weights(settings()).items()}
    with pytest.raises(CheckpointError, match=f"and {2 * len(weights) - 8} more$") as caught:
        loaded(make_checkpoint(tmp_path, weights))
    assert str(caught.value).count("is missing") + str(caught.value).count("is unexpected") == 8


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    weights = random_weights(settings())
    weights["model.transformer.ff_out.weight"] = weights["model.transformer.ff_out.weight"].to(torch.int8)
    with pytest.raises(CheckpointError, match=r"ff_out\.weight is stored as I8; quantised"):
        loaded(make_checkpoint(tmp_path, weights))


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    shard = make_checkpoint(tmp_path, shards=2) / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors cannot be read .*cut short"):
        loaded(tmp_path)


def test_a_shard_that_the_index_names_but_nobody_copied_is_named(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path, shards=2) / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00001-of-00002\.safetensors cannot be read .*no such file"):
        loaded(tmp_path)


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (make_checkpoint(tmp_path) / "model.safetensors").write_text(pointer)
    with pytest.raises(CheckpointError, match="git lfs pull"):
        loaded(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, shards=2)
    first, second = (tmp_path / f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    second.write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match="is both in"):
        loaded(tmp_path)


def test_pickled_weights_are_never_opened(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin, a pickle.*convert it to safetensors"):
        loaded(tmp_path)


def test_a_folder_without_weights_says_which_files_it_lacks(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        loaded(tmp_path)


@pytest.mark.parametrize("architectures", [["LlamaForCausalLM"], []])
def test_an_unknown_family_is_named_with_the_known_ones(tmp_path: Path, architectures: list[str]) -> None:
    make_checkpoint(tmp_path, architectures=architectures, model_type="llama")
    with pytest.raises(CheckpointError, match=r"llama.*not supported; supported are: llada \(LLaDAModelLM\)"):
        loaded(tmp_path)


def test_model_type_decides_where_no_architecture_is_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    change_json(tmp_path / "config.json", architectures=None)
    assert describe(tmp_path).family == "llada"


@pytest.mark.parametrize(
    "change",
    [
        {"weight_tying": True}, {"include_qkv_bias": True}, {"layer_norm_type": "default"}, {"alibi": True},
        {"scale_logits": True}, {"input_emb_norm": True}, {"rope": False}, {"block_type": "sequential"},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_settings_that_would_be_computed_wrongly_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    ((name, value),) = change.items()
    with pytest.raises(CheckpointError, match=f"not supported: {name}={value!r}"):
        loaded(make_checkpoint(tmp_path, **change))


def test_a_config_without_a_needed_field_names_the_field(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["mask_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"config\.json: mask_token_id: must be given"):
        loaded(tmp_path)


def test_a_mask_that_no_file_names_is_asked_for(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, family="sdar")
    mask = reserved_id("<|mdm_mask|>")
    assert loaded(tmp_path).mask_id == mask  # the tokenizer's mask token
    change_json(tmp_path / "tokenizer_config.json", mask_token=None)
    with pytest.raises(CheckpointError, match='no mask token; add "mask_token_id"'):
        loaded(tmp_path)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("<|mdm_mask|>", "<|MASK|>"))
    assert loaded(tmp_path).mask_id == mask  # the spelling of SDAR's authors


def test_config_json_goes_before_the_tokenizer_in_naming_the_mask(tmp_path: Path) -> None:
    assert loaded(make_checkpoint(tmp_path, family="sdar", mask_token_id=0)).mask_id == 0


def test_a_config_that_is_no_json_is_named(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path) / "config.json").write_text('{"d_model": 32,')
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask_token_id": 5000}, "mask_token_id is 5000, but the embedding has"),
        ({"eos_token_id": 5000}, "the largest end-of-answer id is 5000"),
        ({"eos_token_id": 2}, "id 2 is both the mask and an end of answers"),
        ({"embedding_size": 1000, "vocab_size": 1000}, "the largest id of the tokenizer is 1023, .* 1000 rows"),
    ],
)
def test_ids_outside_the_embedding_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        loaded(make_checkpoint(tmp_path, **change))


def test_a_mask_token_that_prompts_could_spell_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    rename_special(tmp_path / "tokenizer.json", special=False)
    change_json(tmp_path / "tokenizer_config.json", mask_token=None)
    with pytest.raises(CheckpointError, match="a prompt could spell it"):
        loaded(tmp_path)


def test_a_hub_name_is_answered_with_how_to_fetch_it() -> None:
    with pytest.raises(ConfigError, match=r"'org/model-8b' is not a folder.*not downloaded here: fetch one"):
        load(ModelConfig(path="org/model-8b", device="cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_a_device_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set model\.device: cpu"):
        load(ModelConfig(path=str(tmp_path), device="cuda"))


@pytest.mark.gpu
def test_a_model_on_the_gpu_holds_the_same_weights(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, shards=2)
    model, _ = load(ModelConfig(path=str(folder), dtype="float32", device="cuda"))
    assert isinstance(model, Transformer)
    stored = random_weights(settings())
    for name, parameter in model.weight_names():
        assert parameter.is_cuda
        assert torch.equal(parameter.cpu(), stored[name]), name


def test_the_bundled_model_loads(tiny_llada: Path) -> None:
    model, codec = load(ModelConfig(path=str(tiny_llada), dtype="float32", device="cpu"))
    prompt = codec.encode_chat([{"role": "user", "content": "What is 2 + 3?"}])
    logits = dense_logits(model, torch.tensor([[*prompt, *[model.mask_id] * 8]]))
    assert logits[0, len(prompt) :].argmax(-1).tolist() != [model.mask_id] * 8
    assert model.mask_id not in model.eos_ids


@pytest.mark.timeout(120)  # imports torch and transformers anew
def test_a_description_does_not_wait_for_torchs_compiler_to_be_imported(tiny_llada):
    """Seconds for every plan and every worker, seen where a tensor was counted up on the meta device."""
    told = f"import sys; from dllm_core.models.load import describe; describe({str(tiny_llada)!r})"
    words = [sys.executable, "-c", f"{told}; print('torch._dynamo' in sys.modules)"]
    done = subprocess.run(words, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr
