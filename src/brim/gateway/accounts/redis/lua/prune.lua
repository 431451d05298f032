-- day

local day = ARGV[1]
if redis.call('SISMEMBER', at('days'), day) == 0 then return 0 end
warm_totals(day)
local totals = redis.call('HGETALL', at('totals:' .. day))
for index = 1, #totals, 2 do
  local name = totals[index]
  if name:sub(1, 1) == '@' then
    redis.call('HINCRBY', at('pruned'), name, totals[index + 1])
  else
    local names, sums = cjson.decode(name:match('%b[]')), cjson.decode(totals[index + 1])
    local place = cjson.encode({ names[1], names[3], names[6] })
    redis.call('HINCRBY', at('pruned'), 'dollars' .. place, string.format('%.0f', sums[6]))
    redis.call('HINCRBY', at('pruned'), 'tokens' .. place, string.format('%.0f', sums[2] + sums[4]))
  end
end
local presumed = redis.call('HGETALL', at('presumed'))
for index = 1, #presumed, 2 do
  if presumed[index + 1] == day then redis.call('HDEL', at('presumed'), presumed[index]) end
end
local count = redis.call('HLEN', at('rows:' .. day))
redis.call('UNLINK', at('rows:' .. day), at('totals:' .. day))
redis.call('SREM', at('days'), day)
return count
