-- for each alert: id, body, when it expires

local old = redis.call('ZRANGEBYSCORE', at('alerts_expiry'), '-inf', string.format('%.6f', now))
for _, id in ipairs(old) do
  if not redis.call('ZSCORE', at('alerts_due'), id) then
    redis.call('HDEL', at('alerts'), id)
    redis.call('ZREM', at('alerts_expiry'), id)
  end
end
for index = 1, #ARGV, 3 do
  local id, body, expires = ARGV[index], ARGV[index + 1], ARGV[index + 2]
  if redis.call('HSETNX', at('alerts'), id, body) == 1 then
    redis.call('ZADD', at('alerts_due'), string.format('%.6f', now), id)
    if expires ~= '' then redis.call('ZADD', at('alerts_expiry'), expires, id) end
  end
end
return 1
