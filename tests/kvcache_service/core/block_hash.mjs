// A second implementation of docs/block-hash.md: recomputes the hashes of a vector file and prints them as JSON.
// node block_hash.mjs block_hash_vectors.json
import { createHash, createHmac } from "node:crypto";
import { readFileSync } from "node:fs";

const TAG = {
  uint: 0x01, int: 0x02, text: 0x03, bytes: 0x04, tokens: 0x05,
  root: 0x10, block: 0x11, namespace: 0x12,
  inNamespace: 0x20, salt: 0x21, adapter: 0x22, item: 0x23, embeddings: 0x24,
};

const part = (tag, ...payload) => {
  const body = Buffer.concat(payload);
  const head = Buffer.alloc(5);
  head.writeUInt8(tag, 0);
  head.writeUInt32LE(body.length, 1);
  return Buffer.concat([head, body]);
};
const uint = (value) => {
  const number = Buffer.alloc(8);
  number.writeBigUInt64LE(BigInt(value));
  return part(TAG.uint, number);
};
const int = (value) => {
  const number = Buffer.alloc(8);
  number.writeBigInt64LE(BigInt(value));
  return part(TAG.int, number);
};
const text = (value) => part(TAG.text, Buffer.from(value, "utf8"));
const hex = (value) => Buffer.from(value, "hex");
const bytes = (value) => part(TAG.bytes, value);
const sha256 = (data) => createHash("sha256").update(data).digest();
const hash = (data) => sha256(data).subarray(0, 16);

const rootOf = (fingerprint) => hash(part(
  TAG.root,
  uint(fingerprint.hash_scheme),
  bytes(hex(fingerprint.model_digest)),
  bytes(hex(fingerprint.tokenizer_digest)),
  uint(fingerprint.block_size),
  text(fingerprint.kv_dtype),
  text(fingerprint.kv_layout),
));

const namespaceOf = (tenant, key) =>
  createHmac("sha256", key).update(part(TAG.namespace, text(tenant))).digest().subarray(0, 16);

const tokensOf = (tokenIds) => {
  const packed = Buffer.alloc(4 * tokenIds.length);
  tokenIds.forEach((tokenId, index) => packed.writeUInt32LE(tokenId, 4 * index));
  return part(TAG.tokens, packed);
};

// Leading full blocks that are those of a public prefix; none for a sequence with a salt.
const publicBlocksOf = (sequence, blockSize) => {
  if (sequence.salt) return 0;
  const lengths = (sequence.public_prefixes ?? []).map((prefix) => {
    const differs = sequence.token_ids.findIndex((tokenId, index) => tokenId !== prefix[index]);
    const common = differs === -1 ? sequence.token_ids.length : differs;
    return Math.floor(common / blockSize);
  });
  return Math.max(0, ...lengths);
};

const extrasOf = (sequence, index, blockSize) => {
  const start = index * blockSize;
  const end = start + blockSize;
  const parts = [];
  if (index === publicBlocksOf(sequence, blockSize) && sequence.tenant) {
    parts.push(part(TAG.inNamespace, bytes(namespaceOf(sequence.tenant, hex(sequence.namespace_key)))));
  }
  if (index === 0 && sequence.salt) parts.push(part(TAG.salt, text(sequence.salt)));
  if (sequence.adapter) {
    parts.push(part(TAG.adapter, text(sequence.adapter.name), bytes(hex(sequence.adapter.content_digest))));
  }
  for (const item of sequence.items ?? []) {
    if (item.offset < end && item.offset + item.num_tokens > start) {
      parts.push(part(TAG.item, bytes(hex(item.content_digest)), int(item.offset - start)));
    }
  }
  if (sequence.embeddings) {
    const size = sequence.embeddings.bytes_per_token;
    const rows = hex(sequence.embeddings.data).subarray(start * size, end * size);
    parts.push(part(TAG.embeddings, bytes(sha256(rows))));
  }
  return parts;
};

const hashesOf = (root, sequence, blockSize) => {
  const hashes = [];
  let parent = root;
  for (let index = 0; (index + 1) * blockSize <= sequence.token_ids.length; index += 1) {
    const tokenIds = sequence.token_ids.slice(index * blockSize, (index + 1) * blockSize);
    parent = hash(part(TAG.block, bytes(parent), tokensOf(tokenIds), ...extrasOf(sequence, index, blockSize)));
    hashes.push(parent.toString("hex"));
  }
  return hashes;
};

const vectors = JSON.parse(readFileSync(process.argv[2], "utf8"));
console.log(JSON.stringify(vectors.map(({ fingerprint, sequences }) => {
  const root = rootOf(fingerprint);
  return {
    root: root.toString("hex"),
    hashes: sequences.map((sequence) => hashesOf(root, sequence, fingerprint.block_size)),
  };
})));
