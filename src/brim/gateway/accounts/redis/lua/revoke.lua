-- id, a unique token of this call

local id, token = ARGV[1], ARGV[2]
local key = redis.call('HGET', at('keys'), id)
local revoked = redis.call('HGET', at('revoked'), id)
local is_retry = revoked and revoked:sub(-#token) == token
if not key or (revoked and not is_retry) then return false end
if not is_retry then
  revoked = string.format('%.6f %s', now, token)
  redis.call('HDEL', at('names'), cjson.decode(key)[1])
  redis.call('HSET', at('revoked'), id, revoked)
end
return { id, key, redis.call('HGET', at('rules'), id), revoked }
