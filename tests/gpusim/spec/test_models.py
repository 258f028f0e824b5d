"""Do model names and Hugging Face configurations give the right attention shape?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpusim.errors import UserError
from gpusim.spec.models import load_model, model_names
from traces.problem import AttentionProblem


def config(folder: Path, **fields: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return str(path)


def test_is_a_model_found_in_any_case() -> None:
    model = load_model("llama-3.1-8b")
    assert (model.name, model.layers, model.heads, model.kv_heads, model.dim) == ("Llama-3.1-8B", 32, 32, 8, 128)


def test_is_every_listed_model_usable() -> None:
    for name in model_names():
        AttentionProblem.from_dict(dict(load_model(name).shape))


def test_is_latent_attention_one_kv_head_of_latent_and_rotated_key(tmp_path: Path) -> None:
    fields = {"num_attention_heads": 16, "num_hidden_layers": 27, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    path = config(tmp_path, num_key_value_heads=16, hidden_size=2048, **fields)
    assert load_model(path).shape == {"heads": 16, "kv_heads": 1, "dim": 576, "dim_v": 512, "mla": True}
    assert load_model("deepseek-v3").shape == {"heads": 128, "kv_heads": 1, "dim": 576, "dim_v": 512, "mla": True}


def test_is_a_near_miss_answered_with_the_model_meant() -> None:
    with pytest.raises(UserError, match=r"did you mean llama-3.1-8b\?"):
        load_model("llama-3.1-8")


def test_does_a_config_give_heads_kv_heads_dim_and_layers(tmp_path: Path) -> None:
    path = config(tmp_path, num_attention_heads=28, num_key_value_heads=4, hidden_size=3584, num_hidden_layers=28)
    model = load_model(path)
    assert (model.heads, model.kv_heads, model.dim, model.layers) == (28, 4, 128, 28)


def test_does_head_dim_win_over_the_hidden_size(tmp_path: Path) -> None:
    path = config(tmp_path, num_attention_heads=64, num_key_value_heads=8, hidden_size=5120, head_dim=128)
    assert load_model(path).dim == 128


def test_does_a_multi_modal_config_give_its_text_model(tmp_path: Path) -> None:
    path = config(tmp_path, text_config={"num_attention_heads": 8, "hidden_size": 512})
    assert (load_model(path).kv_heads, load_model(path).dim) == (8, 64)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 4096}, "num_attention_heads is missing"),
        ({"num_attention_heads": "32"}, "num_attention_heads is '32'"),
        ({"num_attention_heads": 3, "hidden_size": 100}, "not a multiple"),
        ({"num_attention_heads": 128, "kv_lora_rank": 512}, "qk_rope_head_dim is missing"),
    ],
)
def test_is_a_bad_config_refused_in_one_sentence(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_model(config(tmp_path, **fields))


def test_is_a_file_that_is_not_json_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="not valid JSON"):
        load_model(str(path))
