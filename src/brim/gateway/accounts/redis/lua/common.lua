-- Functions that all scripts share. A script is this file followed by the file of one operation, run
-- atomically.
--
--   keys secrets names revoked rules caps   keys, their rules, and caps
--   audit                                   who changed what, by time
--   leases expiry                           reservations in flight, and when their leases expire
--   days rows:DAY                           the ledger: ended reservations by the day they were made
--   pruned                                  sums of deleted rows, by scope ("@…") and by end user
--   alerts alerts_due alerts_attempts alerts_expiry      the outbox; delivered alerts are not due
--   presumed                                the days of rows that a late settlement may still correct
--   totals:DAY counters:PERIOD              sums of the above; a missing one is summed again
--   rates:SCOPE running:SCOPE               what counts against rate limits, only where there are any
--
-- A reservation is a text that moves from leases to rows: `[time,"state",estimated,charge,names]`, with
-- charge = [input,cached,output,written,micro-dollars,unpriced], and
-- names  = [key,name of the key,project,model,upstream,end user].
-- It contains no other brackets.
--
-- A reservation counts in every existing counter of its key, its end user, its project and all keys, for its own day,
-- week and month, whether or not it names a cap there. So counters stay correct while caps change.
--
-- Numbers are doubles here. Integers are exact up to 2^53, nine times the highest cap; but cjson writes
-- only 14 digits, so it is used for reading only.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

local BATCH = 100        -- leases that one call ends
local WINDOW = 62        -- seconds that count against a limit per minute
local KEPT = 70 * 86400  -- seconds that the counters of a day, a week or a month are kept
local NO_CHARGE = '[0,0,0,0,0,false]'
local NOTHING = { dollars = 0, tokens = 0 }

local function at(name)
  return KEYS[1] .. ':' .. name
end

-- Returns when a secret ends, and the id of its key.
local function parse_secret(text)
  local ends, id = text:match('^(%S+) (.*)$')
  return ends == 'inf' and math.huge or tonumber(ends), id
end

local PERIODS = { 'day', 'week', 'month', 'total' }

-- Days, weeks and months of UTC

local function day_of(time)
  -- Count years from March, so that a leap day is the last day of its year.
  local days = math.floor(time / 86400) + 719468
  local era = math.floor(days / 146097)
  local rest = days - era * 146097
  local year = math.floor(
    (rest - math.floor(rest / 1460) + math.floor(rest / 36524) - math.floor(rest / 146096)) / 365)
  rest = rest - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * rest + 2) / 153)
  local day = rest - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  year = year + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02d', year, month, day)
end

-- Returns the name of a week: that of its Monday, after a letter.
local function week_of(day)
  local year, month, date = day:match('^(%d+)-(%d+)-(%d+)$')
  year = month <= '02' and year - 1 or year + 0
  local number = math.floor((153 * ((month + 9) % 12) + 2) / 5) + date - 1  -- since 1 March
  number = number + 365 * year + math.floor(year / 4) - math.floor(year / 100) + math.floor(year / 400)
  return 'W' .. day_of((number - 719468 - (number + 2) % 7) * 86400)
end

-- Returns the name of a day's period; an unknown period is an error.
local function period_name(period, day)
  if period == 'day' then return day end
  if period == 'week' then return week_of(day) end
  if period == 'month' then return day:sub(1, 7) end
  if period == 'total' then return period end
  error('unknown period: ' .. tostring(period))
end

local function is_within(day, period)
  return period == 'total' or day:sub(1, #period) == period or week_of(day) == period
end

-- Reservations as texts

local function with_charge(reservation, charge)
  local numbers = cjson.decode(charge)
  reservation.charge, reservation.numbers = charge, numbers
  reservation.dollars, reservation.tokens = numbers[5], numbers[1] + numbers[3]
  return reservation
end

local function scopes_of(text)
  local names = cjson.decode(text)
  return { 'key:' .. names[1], 'project:' .. names[3], 'user:' .. names[1] .. '/' .. names[6], 'all' }
end

local function reservation_of(time, state, estimated, charge, names)
  local reservation = {
    time = time, day = day_of(tonumber(time)), state = state, estimated = estimated,
    names = names, scopes = scopes_of(names),
  }
  return with_charge(reservation, charge)
end

local function parse(text)
  return reservation_of(text:match('^%[([%d.]+),"(%a+)",(%a+),(%b[]),(%b[])%]$'))
end

local function dump(reservation)
  return string.format('[%s,"%s",%s,%s,%s]',
    reservation.time, reservation.state, reservation.estimated, reservation.charge, reservation.names)
end

local function amounts(reservation, factor)
  return { dollars = factor * reservation.dollars, tokens = factor * reservation.tokens }
end

-- The ledger

local function group_of(row)
  return row.state .. row.names
end

local function tally(sums, reservation, factor)
  sums[1] = sums[1] + factor
  for index = 1, 5 do
    sums[index + 1] = sums[index + 1] + factor * reservation.numbers[index]
  end
  sums[7] = sums[7] + (reservation.numbers[6] and factor or 0)
  return sums
end

local function put_total(day, group, sums)
  if sums[1] == 0 then
    redis.call('HDEL', at('totals:' .. day), group)
  else
    redis.call('HSET', at('totals:' .. day), group,
      string.format('[%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f]', unpack(sums)))
  end
end

-- The totals of a scope, such as "@dollars/key:k_1", from which its counters are summed.
local function add_to_scopes(day, row, factor)
  for _, scope in ipairs(row.scopes) do
    for _, unit in ipairs({ 'dollars', 'tokens' }) do
      if row[unit] ~= 0 then
        redis.call('HINCRBY', at('totals:' .. day), '@' .. unit .. '/' .. scope,
          string.format('%.0f', factor * row[unit]))
      end
    end
  end
end

local function warm_totals(day)
  if redis.call('EXISTS', at('totals:' .. day)) == 1 then return end
  local groups = {}
  for _, text in ipairs(redis.call('HVALS', at('rows:' .. day))) do
    local row = parse(text)
    local group = group_of(row)
    groups[group] = tally(groups[group] or { 0, 0, 0, 0, 0, 0, 0 }, row, 1)
    add_to_scopes(day, row, 1)
  end
  for group, sums in pairs(groups) do
    put_total(day, group, sums)
  end
end

local function add_to_total(row, factor)
  local group = group_of(row)
  local held = redis.call('HGET', at('totals:' .. row.day), group)
  local sums = held and cjson.decode(held) or { 0, 0, 0, 0, 0, 0, 0 }
  put_total(row.day, group, tally(sums, row, factor))
  add_to_scopes(row.day, row, factor)
end

local function record(id, row)
  warm_totals(row.day)
  redis.call('HSET', at('rows:' .. row.day), id, dump(row))
  redis.call('SADD', at('days'), row.day)
  add_to_total(row, 1)
end

-- A retry comes within minutes, so two days are enough.
local function is_recorded(id)
  return redis.call('HEXISTS', at('rows:' .. day_of(now)), id) == 1
    or redis.call('HEXISTS', at('rows:' .. day_of(now - 86400)), id) == 1
end

-- Counters

-- A counter is a field of the hash of its day, week or month: "dollars/key:k_1".
local function place_of(counter, day)
  local period, unit, scope = counter:match('^(%a+)/(%a+)/(.*)$')
  period = period_name(period, day)
  return { period = period, unit = unit, scope = scope, field = unit .. '/' .. scope }
end

local function is_one_of(scopes, scope)
  return scope == scopes[1] or scope == scopes[2] or scope == scopes[3] or scope == scopes[4]
end

local function spent_in(place)
  local spent = 0
  for _, day in ipairs(redis.call('SMEMBERS', at('days'))) do
    if is_within(day, place.period) then
      warm_totals(day)
      spent = spent + tonumber(redis.call('HGET', at('totals:' .. day), '@' .. place.field) or 0)
    end
  end
  if place.period == 'total' then
    spent = spent + tonumber(redis.call('HGET', at('pruned'), '@' .. place.field) or 0)
  end
  return spent
end

-- Deletes the counters that are in use, so that they are summed again.
local function delete_counters()
  for _, kind in ipairs(PERIODS) do
    redis.call('DEL', at('counters:' .. period_name(kind, day_of(now))))
  end
end

-- Returns the part of a counter that belongs to a reservation.
local function part_of(place, reservation)
  local counts = is_within(reservation.day, place.period) and is_one_of(reservation.scopes, place.scope)
  return counts and reservation[place.unit] or 0
end

local function reserved_in(place)
  local reserved = 0
  for _, text in ipairs(redis.call('HVALS', at('leases'))) do
    reserved = reserved + part_of(place, parse(text))
  end
  return reserved
end

local function put_counter(period, field, spent, reserved)
  redis.call('HSET', at('counters:' .. period), field, string.format('%.0f %.0f', spent, reserved))
end

local function parts(text)
  local spent, reserved = text:match('^(%S+) (%S+)$')
  return tonumber(spent), tonumber(reserved)
end

-- Returns what counts against a cap; sums it and stores the counter if there is none.
local function read_counter(place)
  local held = redis.call('HGET', at('counters:' .. place.period), place.field)
  if held then return parts(held) end
  local spent, reserved = spent_in(place), reserved_in(place)
  put_counter(place.period, place.field, spent, reserved)
  if place.period ~= 'total' then redis.call('EXPIRE', at('counters:' .. place.period), KEPT) end
  return spent, reserved
end

local function fields_of(reservation)
  local fields = {}
  for _, scope in ipairs(reservation.scopes) do
    table.insert(fields, 'dollars/' .. scope)
    table.insert(fields, 'tokens/' .. scope)
  end
  return fields
end

-- Updates the existing counters of a reservation; others are summed when they are read.
local function update_counters(reservation, spent, reserved)
  local fields = fields_of(reservation)
  for _, kind in ipairs(PERIODS) do
    local period = period_name(kind, reservation.day)
    for index, held in ipairs(redis.call('HMGET', at('counters:' .. period), unpack(fields))) do
      if held then
        local before_spent, before_reserved = parts(held)
        local unit = index % 2 == 1 and 'dollars' or 'tokens'
        put_counter(period, fields[index], before_spent + spent[unit],
          before_reserved + reserved[unit])
      end
    end
  end
end

-- Rates: the fields of a scope are "requests/SECOND" and "tokens/SECOND".

local function second_of(reservation)
  return math.floor(tonumber(reservation.time))
end

-- Returns the requests and tokens of a scope in the last minute, and the fields; deletes old ones.
local function read_rates(scope)
  local sums, held = { requests = 0, tokens = 0 }, redis.call('HGETALL', at('rates:' .. scope))
  for index = 1, #held, 2 do
    local unit, second = held[index]:match('^(%a+)/(%d+)$')
    if tonumber(second) <= math.floor(now) - WINDOW then
      redis.call('HDEL', at('rates:' .. scope), held[index])
    else
      sums[unit] = sums[unit] + tonumber(held[index + 1])
    end
  end
  return sums, held
end

local function count_rates(scope, reservation)
  local second = second_of(reservation)
  redis.call('HINCRBY', at('rates:' .. scope), 'requests/' .. second, 1)
  redis.call('HINCRBY', at('rates:' .. scope), 'tokens/' .. second,
    string.format('%.0f', reservation.tokens))
  redis.call('EXPIRE', at('rates:' .. scope), 2 * WINDOW)
end

-- Corrects what a reservation counted, in the scopes that count it.
local function correct_rates(reservation, requests, tokens)
  local second = second_of(reservation)
  if second <= math.floor(now) - WINDOW then return end
  for _, scope in ipairs(reservation.scopes) do
    if redis.call('HEXISTS', at('rates:' .. scope), 'requests/' .. second) == 1 then
      redis.call('HINCRBY', at('rates:' .. scope), 'requests/' .. second, requests)
      redis.call('HINCRBY', at('rates:' .. scope), 'tokens/' .. second, string.format('%.0f', tokens))
    end
  end
end

-- Leases

local function put_lease(id, reservation)
  redis.call('HSET', at('leases'), id, dump(reservation))
end

local function extend(id, seconds)
  redis.call('ZADD', at('expiry'), string.format('%.6f', now + seconds), id)
end

local function release(id, reservation)
  redis.call('HDEL', at('leases'), id)
  redis.call('ZREM', at('expiry'), id)
  for _, scope in ipairs(reservation and reservation.scopes or {}) do
    redis.call('SREM', at('running:' .. scope), id)
  end
end

-- Ends a lease with a row of the ledger. The lease is deleted first: if memory is full, Redis checks
-- only the first write of a script, and a deletion needs no memory. So spending can always be recorded.
local function finish(id, reservation, state, estimated, charge)
  local before = amounts(reservation, -1)
  release(id, reservation)
  reservation.state, reservation.estimated = state, estimated
  with_charge(reservation, charge)
  update_counters(reservation, amounts(reservation, 1), before)
  correct_rates(reservation, 0, before.tokens + reservation.tokens)
  record(id, reservation)
end

local function expire(id, reservation)
  if reservation.state == 'sent' then
    finish(id, reservation, 'presumed', 'false', reservation.charge)
    redis.call('HSET', at('presumed'), id, reservation.day)
  else
    finish(id, reservation, 'refunded', 'false', NO_CHARGE)
  end
end

-- Returns the reservation with this id, and whether its lease still runs.
local function lease(id)
  local text = redis.call('HGET', at('leases'), id)
  if not text then return nil, false end
  return parse(text), tonumber(redis.call('ZSCORE', at('expiry'), id) or 0) > now
end

local function sweep()
  local expired = redis.call(
    'ZRANGEBYSCORE', at('expiry'), '-inf', string.format('%.6f', now), 'LIMIT', 0, BATCH)
  for _, id in ipairs(expired) do
    local reservation = lease(id)
    if reservation then expire(id, reservation) else release(id) end
  end
  return #expired
end
