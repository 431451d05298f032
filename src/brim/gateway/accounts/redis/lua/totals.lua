-- days

local found = {}
for _, day in ipairs(ARGV) do
  warm_totals(day)
  table.insert(found, { day, redis.call('HGETALL', at('totals:' .. day)) })
end
return found
