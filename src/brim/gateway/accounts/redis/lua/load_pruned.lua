-- for each sum: its place as JSON, its dollars and its tokens

redis.call('DEL', at('pruned'))
for index = 1, #ARGV, 3 do
  local place, dollars, tokens = ARGV[index], ARGV[index + 1], ARGV[index + 2]
  redis.call('HSET', at('pruned'), 'dollars' .. place, dollars, 'tokens' .. place, tokens)
  local names = cjson.decode(place)
  for _, scope in ipairs(scopes_of(cjson.encode({ names[1], '', names[2], '', '', names[3] }))) do
    redis.call('HINCRBY', at('pruned'), '@dollars/' .. scope, dollars)
    redis.call('HINCRBY', at('pruned'), '@tokens/' .. scope, tokens)
  end
end
delete_counters()
return 1
