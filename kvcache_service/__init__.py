"""Blocks and prefix cache: who holds which block of a worker's K/V memory, and which prefix is already there.

core/                   the rules; pure
  block                 the null block, block keys
  free_block_queue      the order in which free blocks are given out
  prefix_cache          content -> blocks
  namespaces, block_names
                        whose each block is, and where it lies in its sequence
  block_pool            free, held, fenced and named blocks of one worker; fences: readers outside the step order
  hash_parts, hash_extras, block_hash
                        what a block's content is called; docs/block-hash.md
  tenants, public_prefixes, identities
                        from who a request says it is to what its blocks hash under
  request               ids, keys and block table of one request
  publication           reserved when planned, committed when acknowledged
  kv_cache_manager      declare, admit, grow, commit, ack, free, forget, fail, lookup, pin, erase
  admission             who may start; misses: why a lookup found no more
  pins                  prefixes that are kept for a time
  window                how long a hit is where layers look back a limited number of tokens
  plan                  the values of a plan and of what it got
  plan_check, plan_step whether a plan makes sense; the loop that applies it
  declared_tables       tables taken over when a pool is opened; restore: what was recorded of it
  pools                 incarnations, sessions, the order of plans, answers kept
  cached_prefixes       look up, pin, erase and forget over all pools
  statistics, totals, tenant_figures
                        what is counted: of a pool, of all, of each tenant
  events, event_log, residency
                        what an index elsewhere is told, from any event on or anew
  errors                mistakes of callers
servicer                the gRPC methods: convert, one core call, convert
wire, prefix_wire, stats_wire, watch_wire
                        messages <-> core values
plan_stream             one stream of plans, until the scheduler or this service leaves
watch                   watchers of the prefix caches, each at its own pace
metadata_store          what is recorded in Redis, and what comes back; metadata_record documents the keys
metadata_journal, metadata_writer, metadata_reader, metadata_scripts, redis_client
                        notes of what changed, the task that writes them, what reads them at the start
metrics, spans          what Prometheus and a trace see
config, __main__        settings; the process
"""
