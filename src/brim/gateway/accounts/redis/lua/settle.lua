-- for each: id, bill, whether it was counted

local function put_right(id, day, bill, counted)
  local text = redis.call('HGET', at('rows:' .. day), id)
  if not text then return end
  local row = read(text)
  local before = amounts(row, -1)
  redis.call('HDEL', at('presumed'), id)
  warm_totals(day)
  add_to_total(row, -1)
  row.state, row.counted = 'settled', counted
  with_bill(row, bill)
  redis.call('HSET', at('rows:' .. day), id, written(row))
  add_to_total(row, 1)
  move(row, { dollars = before.dollars + row.dollars, tokens = before.tokens + row.tokens }, NOTHING)
end

for index = 1, #ARGV, 3 do
  local id, bill, counted = ARGV[index], ARGV[index + 1], ARGV[index + 2]
  local claim, is_running = lease(id)
  if is_running or (claim and claim.state == 'forwarded') then
    finish(id, claim, 'settled', counted, bill)
  else
    local day = redis.call('HGET', at('presumed'), id)
    if day then put_right(id, day, bill, counted) end
  end
end
return 1
