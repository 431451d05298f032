-- id, hash of the new secret, seconds until the other secrets end

local id, hash, overlap = unpack(ARGV)
local key = redis.call('HGET', at('keys'), id)
if not key or redis.call('HEXISTS', at('revoked'), id) == 1 then return false end
local secrets = redis.call('HGETALL', at('secrets'))
for index = 1, #secrets, 2 do
  local ends, owner = parse_secret(secrets[index + 1])
  if ends <= now then
    redis.call('HDEL', at('secrets'), secrets[index])
  elseif owner == id and secrets[index] ~= hash then
    ends = math.min(ends, now + tonumber(overlap))
    redis.call('HSET', at('secrets'), secrets[index], string.format('%.6f %s', ends, id))
  end
end
redis.call('HSET', at('secrets'), hash, 'inf ' .. id)
return { id, key, redis.call('HGET', at('rules'), id) }
