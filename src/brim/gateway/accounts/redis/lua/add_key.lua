-- id, name, hash of the secret, the key, its caps and its rules, each possibly empty

local id, name, hash, key, caps, rules = unpack(ARGV)
local holder = redis.call('HGET', at('keys'), id)
-- The text of a key is unique for each call, so this is a retry.
if holder == key then return 1 end
if holder or redis.call('HEXISTS', at('names'), name) == 1
  or redis.call('HEXISTS', at('secrets'), hash) == 1 then return 0 end
redis.call('HSET', at('keys'), id, key)
redis.call('HSET', at('names'), name, id)
redis.call('HSET', at('secrets'), hash, 'inf ' .. id)
if caps ~= '' then redis.call('HSET', at('caps'), 'key:' .. id, caps) end
if rules ~= '' then redis.call('HSET', at('rules'), id, rules) end
return 1
