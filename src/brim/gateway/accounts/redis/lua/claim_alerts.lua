-- limit, seconds until the second attempt, most seconds between attempts

local limit, first, most = unpack(ARGV)
local found = {}
local due = redis.call(
  'ZRANGEBYSCORE', at('alerts_due'), '-inf', string.format('%.6f', now), 'LIMIT', 0, limit)
for _, id in ipairs(due) do
  local attempt = redis.call('HINCRBY', at('alerts_attempts'), id, 1)
  local wait = math.min(tonumber(most), tonumber(first) * 2 ^ math.min(attempt - 1, 10))
  redis.call('ZADD', at('alerts_due'), string.format('%.6f', now + wait), id)
  table.insert(found, { id, redis.call('HGET', at('alerts'), id), attempt })
end
return found
