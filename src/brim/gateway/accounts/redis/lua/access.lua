-- hash of a secret

local secret = redis.call('HGET', at('secrets'), ARGV[1])
local ends, id = parse_secret(secret or '')
if ends and ends <= now then return false end
local key = id and redis.call('HGET', at('keys'), id)
if not key or redis.call('HEXISTS', at('revoked'), id) == 1 then return false end

local project = cjson.decode(key)[2]
local function caps(scope)
  return redis.call('HGET', at('caps'), scope)
end
return {
  id, key, redis.call('HGET', at('rules'), id),
  caps('key:' .. id), project ~= '' and caps('project:' .. project), caps('all'), caps('users:' .. id),
}
