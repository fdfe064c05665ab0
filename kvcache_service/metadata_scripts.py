"""The Lua scripts that write to Redis: each changes the keys of one pool at once. Plain text; knows no client.

Every blob is a row of (length of a field as uint16, length of its value as uint32, field, value): `metadata_record`.
"""

_APPLY = """
local function apply(key, pairs)
  local at, last = 1, #pairs
  while at <= last do
    local field_bytes, value_bytes
    field_bytes, value_bytes, at = struct.unpack('<I2I4', pairs, at)
    local field = string.sub(pairs, at, at + field_bytes - 1)
    at = at + field_bytes + value_bytes
    if value_bytes == 0 then redis.call('HDEL', key, field)
    else redis.call('HSET', key, field, string.sub(pairs, at - value_bytes, at - 1)) end
  end
end
"""

# Writes changes only onto the record that they follow: a Redis that lost writes, or that another service writes to,
# is noticed here, before it could call a stale record new. Answers the number of the new record; 0 = another is there.
# KEYS meta, blocks, pins, tenants, events. ARGV kvcache_incarnation, number of the record before, expiry in seconds,
# most events; blobs for meta, blocks, pins and tenants.
WRITE_CHANGES = (
    _APPLY
    + """
local there = redis.call('HMGET', KEYS[1], 'kvcache_incarnation', 'record')
if there[1] ~= ARGV[1] or there[2] ~= ARGV[2] then return 0 end
local record = string.format('%.0f', tonumber(ARGV[2]) + 1)
for i = 1, 4 do apply(KEYS[i], ARGV[i + 4]) end
redis.call('HSET', KEYS[1], 'record', record)
if #ARGV[6] > 0 then
  redis.call('XADD', KEYS[5], 'MAXLEN', ARGV[4], redis.call('HINCRBY', KEYS[1], 'event', 1) .. '-0', 'changes', ARGV[6])
end
for i = 1, 5 do redis.call('EXPIRE', KEYS[i], ARGV[3]) end
return tonumber(record)
"""
)

# One piece of a snapshot. KEYS staged. ARGV 1 = the first piece; expiry in seconds; blob.
STAGE = (
    _APPLY
    + """
if ARGV[1] == '1' then redis.call('UNLINK', KEYS[1]) end
apply(KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""
)

# Puts a snapshot in the place of whatever was there. Answers the number of the new record, 0 if the staged blocks are
# gone. KEYS as above, and staged. ARGV number of pieces that were staged, number of the last record known, expiry,
# most events; blobs for meta, blocks (what changed while it was staged), pins and tenants.
PUT_SNAPSHOT = (
    _APPLY
    + """
if ARGV[1] ~= '0' and redis.call('EXISTS', KEYS[6]) == 0 then return 0 end
local before = math.max(tonumber(ARGV[2]), tonumber(redis.call('HGET', KEYS[1], 'record') or 0))
local record = string.format('%.0f', before + 1)
local event = string.format('%.0f', tonumber(redis.call('HGET', KEYS[1], 'event') or 0) + 1)
for i = 1, 4 do redis.call('UNLINK', KEYS[i]) end
if ARGV[1] ~= '0' then redis.call('RENAME', KEYS[6], KEYS[2]) end
for i = 1, 4 do apply(KEYS[i], ARGV[i + 4]) end
redis.call('HSET', KEYS[1], 'record', record, 'event', event)
if type(redis.pcall('XADD', KEYS[5], 'MAXLEN', ARGV[4], event .. '-0', 'snapshot', '')) == 'table' then
  redis.call('UNLINK', KEYS[5])
  redis.call('XADD', KEYS[5], event .. '-0', 'snapshot', '')
end
for i = 1, 5 do redis.call('PERSIST', KEYS[i]); redis.call('EXPIRE', KEYS[i], ARGV[3]) end
return tonumber(record)
"""
)

# Makes a hash be exactly this. KEYS hash. ARGV blob.
REPLACE = (
    _APPLY
    + """
redis.call('UNLINK', KEYS[1])
apply(KEYS[1], ARGV[1])
return 1
"""
)
