-- for each row: its id, its day and its text

for index = 1, #ARGV, 3 do
  local id, day, text = ARGV[index], ARGV[index + 1], ARGV[index + 2]
  if redis.call('HSETNX', at('rows:' .. day), id, text) == 1 then
    redis.call('SADD', at('days'), day)
    redis.call('DEL', at('totals:' .. day))
    if parse(text).state == 'presumed' then redis.call('HSET', at('presumed'), id, day) end
  end
end
delete_counters()
return 1
