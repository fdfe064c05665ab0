"""Blocks and prefix cache: who holds which block of a worker's K/V memory, and which prefix is already there.

core/                   the rules; pure
  block                 the null block, block keys
  free_block_queue      the order in which free blocks are given out
  prefix_cache          content -> blocks
  block_pool            free, held and named blocks of one worker
  hash_parts, hash_extras, block_hash
                        what a block's content is called; docs/block-hash.md
  request               ids, keys and block table of one request
  publication           reserved when planned, committed when acknowledged
  kv_cache_manager      declare, admit, grow, commit, ack, free, forget, fail, lookup
  plan                  the values of a plan and of what it got
  plan_check, plan_step whether a plan makes sense; the loop that applies it
  declared_tables       tables taken over when a pool is opened
  pools                 incarnations, sessions, the order of plans, answers kept
  statistics, events    what is counted; what an index elsewhere is told
  errors                mistakes of callers
servicer                the gRPC methods: convert, one core call, convert
wire                    messages <-> core values
metadata_store          writes behind to Redis what changed; metadata_record documents the keys
metrics, spans          what Prometheus and a trace see
config, __main__        settings; the process
"""
