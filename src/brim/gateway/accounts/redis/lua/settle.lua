-- for each settlement: id, charge, estimated

local function correct(id, day, charge, estimated)
  local text = redis.call('HGET', at('rows:' .. day), id)
  if not text then return end
  local row = parse(text)
  local before = amounts(row, -1)
  redis.call('HDEL', at('presumed'), id)
  warm_totals(day)
  add_to_total(row, -1)
  row.state, row.estimated = 'settled', estimated
  with_charge(row, charge)
  redis.call('HSET', at('rows:' .. day), id, dump(row))
  add_to_total(row, 1)
  local change = { dollars = before.dollars + row.dollars, tokens = before.tokens + row.tokens }
  update_counters(row, change, NOTHING)
end

for index = 1, #ARGV, 3 do
  local id, charge, estimated = ARGV[index], ARGV[index + 1], ARGV[index + 2]
  local reservation, is_running = lease(id)
  if is_running or (reservation and reservation.state == 'sent') then
    finish(id, reservation, 'settled', estimated, charge)
  else
    local day = redis.call('HGET', at('presumed'), id)
    if day then correct(id, day, charge, estimated) end
  end
end
return 1
