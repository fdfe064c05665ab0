"""How a worker introduces itself, as values."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What two workers must agree on before their blocks may be compared."""

    hash_scheme: int
    model_digest: bytes
    tokenizer_digest: bytes
    block_size: int
    kv_dtype: str
    kv_layout: str

    def difference(self, other: "Fingerprint") -> str | None:
        """The name of the first field that differs."""
        mine, its = asdict(self), asdict(other)
        return next((name for name in mine if mine[name] != its[name]), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """One session of one life of a worker."""

    worker_id: str
    incarnation: int
    session: int
    fingerprint: Fingerprint
    model_name: str
    max_model_len: int
    vocab_size: int
    num_blocks: int  # including the null block
    max_num_batched_tokens: int
    last_executed_seq: int
