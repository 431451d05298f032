-- id, the rules of a key

local id, rules = unpack(ARGV)
local key = redis.call('HGET', at('keys'), id)
if not key or redis.call('HEXISTS', at('revoked'), id) == 1 then return false end
redis.call('HSET', at('rules'), id, rules)
return { id, key, rules }
