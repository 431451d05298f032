-- id, a word that no other call has

local id, word = ARGV[1], ARGV[2]
local key = redis.call('HGET', at('keys'), id)
local revoked = redis.call('HGET', at('revoked'), id)
local is_again = revoked and revoked:sub(-#word) == word
if not key or (revoked and not is_again) then return false end
if not is_again then
  revoked = string.format('%.6f %s', now, word)
  redis.call('HDEL', at('names'), cjson.decode(key)[1])
  redis.call('HSET', at('revoked'), id, revoked)
end
return { id, key, revoked }
