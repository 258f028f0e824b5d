"""What is computed: the shape of one attention call."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from traces.dtypes import DType, dtype

LAYOUTS = ("bhsd", "bshd")


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """One attention call, O = softmax(scale * Q K^T + mask) V.

    Attributes:
        batch: independent sequences.
        heads: query heads.
        kv_heads: key/value heads; must divide `heads` (GQA; 1 is MQA). 0 means as many as `heads`.
        seq: query rows per head.
        seq_kv: key/value rows per head. 0 means as many as `seq`.
        dim: head dimension d of Q, K, V and O (elements).
        dtype: format of Q and O.
        kv_dtype: format of K and V; empty means as `dtype`.
        causal: mask keys past the diagonal, aligned bottom-right: query row i sees key j iff
            j <= i + seq_kv - seq (FlashAttention's convention since v2.1).
        layout: memory order of Q, K, V, O, `bhsd` (head-major) or `bshd` (token-major).

    Raises:
        ValueError: one sentence naming the field, its value and what is allowed.
    """

    batch: int = 1
    heads: int = 32
    kv_heads: int = 0
    seq: int = 4096
    seq_kv: int = 0
    dim: int = 128
    dtype: str = "fp16"
    kv_dtype: str = ""
    causal: bool = False
    layout: str = "bhsd"

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "seq_kv", self.seq_kv or self.seq)
        object.__setattr__(self, "kv_dtype", self.kv_dtype or self.dtype)
        for name in ("batch", "heads", "kv_heads", "seq", "seq_kv", "dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}")
        if not 8 <= self.dim <= 512:
            raise ValueError(f"dim {self.dim} is outside the supported 8 to 512")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout {self.layout!r} is not one of {', '.join(LAYOUTS)}")
        dtype(self.dtype), dtype(self.kv_dtype)

    @property
    def scale(self) -> float:
        """Softmax scale 1 / sqrt(d)."""
        return float(self.dim) ** -0.5

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def storage(self) -> DType:
        """Format of Q, O (and of S, P in the naive algorithm)."""
        return dtype(self.dtype)

    @property
    def kv_storage(self) -> DType:
        """Format of K and V."""
        return dtype(self.kv_dtype)

    @property
    def diagonal(self) -> int:
        """Keys that query row 0 sees beyond key 0 under the causal mask: seq_kv - seq (may be negative)."""
        return self.seq_kv - self.seq

    def visible_keys(self, row: int) -> int:
        """Keys that query row `row` attends to (0 for a fully masked row)."""
        if not self.causal:
            return self.seq_kv
        return min(self.seq_kv, max(0, row + 1 + self.diagonal))

    def visible_pairs(self) -> int:
        """Unmasked (query, key) pairs of one head."""
        if not self.causal:
            return self.seq * self.seq_kv
        first = max(0, -self.diagonal)
        rows = self.seq - first
        if rows <= 0:
            return 0
        start = first + 1 + self.diagonal
        return rows * start + rows * (rows - 1) // 2

    def flops(self) -> int:
        """Floating-point operations of the two matrix products over unmasked pairs (FMA = 2)."""
        return 4 * self.batch * self.heads * self.visible_pairs() * self.dim

    def to_dict(self) -> dict[str, object]:
        """Plain fields, as in the JSON contract's `problem`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> AttentionProblem:
        """Inverse of `to_dict`; unknown keys are refused."""
        known = {f.name for f in fields(cls)}
        unknown = set(data) - known
        if unknown:
            raise ValueError(f"problem has unknown fields {sorted(unknown)}")
        return cls(**data)  # type: ignore[arg-type]
