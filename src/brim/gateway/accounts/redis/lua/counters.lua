local found = {}
for kind in pairs(PERIODS) do
  local period = period_name(kind, day_of(now))
  table.insert(found, { period, redis.call('HGETALL', at('counters:' .. period)) })
end
return found
