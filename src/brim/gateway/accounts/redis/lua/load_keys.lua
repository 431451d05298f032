-- number of keys, for each key: id, name, the key, its rules, when it was revoked; for each secret: hash, value

local last = 1 + 5 * tonumber(ARGV[1])
for index = 2, last, 5 do
  local id, name, revoked = ARGV[index], ARGV[index + 1], ARGV[index + 4]
  local holder = redis.call('HGET', at('names'), name)
  if revoked == '' and holder and holder ~= id and redis.call('HEXISTS', at('keys'), id) == 0 then
    return name
  end
end
for index = 2, last, 5 do
  local id, name, key, rules, revoked = unpack(ARGV, index, index + 4)
  if redis.call('HSETNX', at('keys'), id, key) == 1 then
    if rules ~= '' then redis.call('HSET', at('rules'), id, rules) end
    if revoked == '' then
      redis.call('HSET', at('names'), name, id)
    else
      redis.call('HSET', at('revoked'), id, revoked)
    end
  end
end
for index = last + 1, #ARGV, 2 do
  redis.call('HSETNX', at('secrets'), ARGV[index], ARGV[index + 1])
end
return false
