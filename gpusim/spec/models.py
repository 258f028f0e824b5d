"""Attention shapes of language models: by name from `models.toml`, or from a Hugging Face `config.json`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusim.errors import UserError
from gpusim.spec.document import did_you_mean

__all__ = ["ModelShape", "load_model", "model_names"]

_TABLE = Path(__file__).parent / "models.toml"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The attention of a model.

    Attributes:
        name: model name, or the path of its configuration.
        layers: attention layers (0: unknown).
        heads, kv_heads: query heads and key/value heads.
        dim: head dimension, elements.
        dim_v: head dimension of V (0: as `dim`).
        mla: whether K and V are one latent; `kv_heads` is then 1, and `dim` that of the latent and its rotated key.
    """

    name: str
    layers: int
    heads: int
    kv_heads: int
    dim: int
    dim_v: int = 0
    mla: bool = False

    @property
    def shape(self) -> dict[str, int]:
        """The fields of an attention problem that the model sets."""
        latent = {"dim_v": self.dim_v, "mla": True} if self.mla else {}
        return {"heads": self.heads, "kv_heads": self.kv_heads, "dim": self.dim} | latent


def _latent(name: str, layers: int, heads: int, latent: int, rotated: int) -> ModelShape:
    """Multi-head latent attention as it is decoded (DeepSeek-V2, arXiv:2405.04434, section 2.1): every head attends to
    the latent, with the rotated key of all heads beside it.
    """
    return ModelShape(name, layers, heads, 1, latent + rotated, latent, mla=True)


def model_names() -> list[str]:
    """Names of the models that come with the package."""
    return list(_read())


def load_model(name_or_path: str) -> ModelShape:
    """The model called `name_or_path` (any case), or described by that `config.json`; UserError otherwise."""
    for name, entry in _read().items():
        if name.lower() == name_or_path.lower():
            if "kv_lora_rank" in entry:
                latent = entry["kv_lora_rank"], entry["qk_rope_head_dim"]
                return _latent(name, entry["layers"], entry["heads"], *latent)
            return ModelShape(name, entry["layers"], entry["heads"], entry["kv_heads"], entry["dim"])
    path = Path(name_or_path)
    if path.is_file():
        return _from_config(path)
    lowered = {name.lower(): name for name in model_names()}
    hint = did_you_mean(name_or_path.lower(), lowered)
    raise UserError(
        f"--model {name_or_path!r} is neither a config.json nor one of {', '.join(lowered.values())}{hint}",
    )


def _read() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))


def _from_config(path: Path) -> ModelShape:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--model {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"--model {path} is not valid JSON: {error}") from None
    if isinstance(config, Mapping) and isinstance(config.get("text_config"), Mapping):
        config = config["text_config"]
    if not isinstance(config, Mapping):
        raise UserError(f"--model {path} does not hold a JSON object")
    heads = _count(path, config, "num_attention_heads")
    kv_heads = _count(path, config, "num_key_value_heads") if config.get("num_key_value_heads") is not None else heads
    layers = _count(path, config, "num_hidden_layers") if "num_hidden_layers" in config else 0
    if config.get("kv_lora_rank"):
        latent = _count(path, config, "kv_lora_rank"), _count(path, config, "qk_rope_head_dim")
        return _latent(str(path), layers, heads, *latent)
    if config.get("head_dim") is not None:
        return ModelShape(str(path), layers, heads, kv_heads, _count(path, config, "head_dim"))
    hidden = _count(path, config, "hidden_size")
    if hidden % heads:
        raise UserError(f"--model {path}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return ModelShape(str(path), layers, heads, kv_heads, hidden // heads)


def _count(path: Path, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        shown = "is missing" if value is None else f"is {value!r}, not a whole number of at least 1"
        raise UserError(f"--model {path}: {key} {shown}")
    return value
