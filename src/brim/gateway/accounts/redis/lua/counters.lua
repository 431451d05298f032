local found = {}
local today = day_of(now)
for _, period in ipairs({ today, today:sub(1, 7), 'total' }) do
  table.insert(found, { period, redis.call('HGETALL', at('counters:' .. period)) })
end
return found
