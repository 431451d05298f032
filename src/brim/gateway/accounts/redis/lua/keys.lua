local found = {}
local keys = redis.call('HGETALL', at('keys'))
for index = 1, #keys, 2 do
  table.insert(found, { keys[index], keys[index + 1], redis.call('HGET', at('revoked'), keys[index]) })
end
return found
