local found = {}
local keys = redis.call('HGETALL', at('keys'))
for index = 1, #keys, 2 do
  local id = keys[index]
  table.insert(found, {
    id, keys[index + 1], redis.call('HGET', at('rules'), id), redis.call('HGET', at('revoked'), id)
  })
end
return found
