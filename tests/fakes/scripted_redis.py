"""A Redis that knows the scripts of the KV cache service and nothing else: hashes in memory, one script at a time."""

from kvcache_service import metadata_record as record
from kvcache_service import metadata_scripts as scripts
from kvcache_service.metadata_journal import Write


class ScriptedRedis:
    """Obeys the scripts' contracts; tests/kvcache_service/test_metadata_store.py runs them in real servers."""

    def __init__(self) -> None:
        self.hashes: dict[str, dict[bytes, bytes]] = {}

    def run(self, write: Write) -> int:
        match write.script:
            case scripts.WRITE_CHANGES:
                return self._write_changes(write)
            case scripts.STAGE:
                return self._stage(write)
            case scripts.PUT_SNAPSHOT:
                return self._put_snapshot(write)
        raise AssertionError("an unknown script")

    def flush(self) -> None:
        """Everything is lost."""
        self.hashes.clear()

    def _write_changes(self, write: Write) -> int:
        there = self.hashes.get(write.keys[0], {})
        if (there.get(b"kvcache_incarnation"), there.get(b"record")) != (_text(write.args[0]), _text(write.args[1])):
            return 0
        return self._apply_all(write, int(there[b"record"]) + 1)

    def _stage(self, write: Write) -> int:
        is_first, _, blob = write.args
        if is_first:
            self.hashes.pop(write.keys[0], None)
        self._apply(write.keys[0], _blob(blob))
        return 1

    def _put_snapshot(self, write: Write) -> int:
        num_staged, known = int(write.args[0]), int(write.args[1])
        meta, blocks, staged = write.keys[0], write.keys[1], write.keys[5]
        if num_staged and staged not in self.hashes:
            return 0
        before = max(known, int(self.hashes.get(meta, {}).get(b"record", b"0")))
        for key in write.keys[:4]:
            self.hashes.pop(key, None)
        if num_staged:
            self.hashes[blocks] = self.hashes.pop(staged)
        return self._apply_all(write, before + 1)

    def _apply_all(self, write: Write, number: int) -> int:
        for key, blob in zip(write.keys[:4], write.args[4:], strict=True):
            self._apply(key, _blob(blob))
        self.hashes[write.keys[0]][b"record"] = str(number).encode()
        return number

    def _apply(self, key: str, blob: bytes) -> None:
        fields = self.hashes.setdefault(key, {})
        for field, value in record.pairs(blob):
            if value:
                fields[field] = value
            else:
                fields.pop(field, None)
        if not fields:
            del self.hashes[key]


def _text(value: bytes | int) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _blob(value: bytes | int) -> bytes:
    assert isinstance(value, bytes)
    return value
