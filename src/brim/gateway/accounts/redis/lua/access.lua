-- hash of a secret

local id = redis.call('HGET', at('secrets'), ARGV[1])
local key = id and redis.call('HGET', at('keys'), id)
if not key or redis.call('HEXISTS', at('revoked'), id) == 1 then return false end

local scopes = { 'key:' .. id }
local project = cjson.decode(key)[2]
if project ~= '' then table.insert(scopes, 'project:' .. project) end
table.insert(scopes, 'all')

local found = { id, key }
for _, scope in ipairs(scopes) do
  table.insert(found, { scope, redis.call('HGET', at('caps'), scope) })
end
return found
