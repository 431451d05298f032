local found = {}
for _, kind in ipairs(PERIODS) do
  local period = period_name(kind, day_of(now - tonumber(ARGV[1])))
  table.insert(found, { period, redis.call('HGETALL', at('counters:' .. period)) })
end
return found
