-- What the steps share. A script is this text and that of one step, run as one: nobody sees half of it.
--
--   keys secrets names revoked caps         who may spend, and how much
--   leases expiry                           claims under way, and when each of them is over
--   days rows:DAY                           the ledger: claims that are over, by the day they were taken
--   presumed                                the days of rows that may still be put right
--   totals:DAY counters:PERIOD              sums of the above; where one is missing it is summed up anew
--
-- A claim is one text from its first to its last day: `[taken,"state",counted,bill,who]`, with
-- bill = [input,cached,output,written,micro-dollars,unpriced], and
-- who  = [key,name of the key,project,model,upstream].
-- No bracket stands in it but these.
--
-- It counts in every counter that there is of its key, its project and all, in the day and month of its
-- own, whether or not it named a cap there. So a counter is right though caps come and go.
--
-- Numbers are doubles here. Whole ones are exact up to 2^53, nine times the highest cap there is; but
-- cjson writes only 14 digits of them, so it reads and never writes.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

local AT_ONCE = 100      -- leases that one call deals with
local KEPT = 70 * 86400  -- seconds; the counters of a day and of a month outlive it by far
local NO_BILL = '[0,0,0,0,0,false]'
local NOTHING = { dollars = 0, tokens = 0 }

local function at(name)
  return KEYS[1] .. ':' .. name
end

-- Days and months of UTC

local function day_of(time)
  -- Years begin in March here, so that a leap day is the last of its year.
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

local function is_within(day, period)
  return period == 'total' or day:sub(1, #period) == period
end

-- Claims as texts

local function with_bill(claim, bill)
  local numbers = cjson.decode(bill)
  claim.bill, claim.numbers = bill, numbers
  claim.dollars, claim.tokens = numbers[5], numbers[1] + numbers[3]
  return claim
end

local function scopes_of(who)
  local names = cjson.decode(who)
  return { 'key:' .. names[1], 'project:' .. names[3], 'all' }
end

local function claim_of(taken, state, counted, bill, who)
  local claim = {
    taken = taken, day = day_of(tonumber(taken)), state = state, counted = counted,
    who = who, scopes = scopes_of(who),
  }
  return with_bill(claim, bill)
end

local function read(text)
  return claim_of(text:match('^%[([%d.]+),"(%a+)",(%a+),(%b[]),(%b[])%]$'))
end

local function written(claim)
  return string.format('[%s,"%s",%s,%s,%s]',
    claim.taken, claim.state, claim.counted, claim.bill, claim.who)
end

local function amounts(claim, factor)
  return { dollars = factor * claim.dollars, tokens = factor * claim.tokens }
end

-- The ledger

local function group_of(row)
  return row.state .. row.who
end

local function tally(sums, claim, factor)
  sums[1] = sums[1] + factor
  for index = 1, 5 do
    sums[index + 1] = sums[index + 1] + factor * claim.numbers[index]
  end
  sums[7] = sums[7] + (claim.numbers[6] and factor or 0)
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

local function warm_totals(day)
  if redis.call('EXISTS', at('totals:' .. day)) == 1 then return end
  local groups = {}
  for _, text in ipairs(redis.call('HVALS', at('rows:' .. day))) do
    local row = read(text)
    local group = group_of(row)
    groups[group] = tally(groups[group] or { 0, 0, 0, 0, 0, 0, 0 }, row, 1)
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
end

local function book(id, row)
  warm_totals(row.day)
  redis.call('HSET', at('rows:' .. row.day), id, written(row))
  redis.call('SADD', at('days'), row.day)
  add_to_total(row, 1)
end

-- An id comes again within minutes, if at all, so two days are enough.
local function is_booked(id)
  return redis.call('HEXISTS', at('rows:' .. day_of(now)), id) == 1
    or redis.call('HEXISTS', at('rows:' .. day_of(now - 86400)), id) == 1
end

-- Counters

-- A counter has its field in the hash of its very day or month: "dollars/key:k_1".
local function place_of(counter, day)
  local period, unit, scope = counter:match('^(%a+)/(%a+)/(.*)$')
  period = period == 'day' and day or period == 'month' and day:sub(1, 7) or 'total'
  return { period = period, unit = unit, scope = scope, field = unit .. '/' .. scope }
end

local function is_one_of(scopes, scope)
  return scope == scopes[1] or scope == scopes[2] or scope == scopes[3]
end

local function spent_in(place)
  local spent = 0
  for _, day in ipairs(redis.call('SMEMBERS', at('days'))) do
    if is_within(day, place.period) then
      warm_totals(day)
      local totals = redis.call('HGETALL', at('totals:' .. day))
      for index = 1, #totals, 2 do
        if is_one_of(scopes_of(totals[index]:match('%b[]')), place.scope) then
          local sums = cjson.decode(totals[index + 1])
          spent = spent + (place.unit == 'dollars' and sums[6] or sums[2] + sums[4])
        end
      end
    end
  end
  return spent
end

-- How much of a counter is a claim's.
local function part_of(place, claim)
  local counts = is_within(claim.day, place.period) and is_one_of(claim.scopes, place.scope)
  return counts and claim[place.unit] or 0
end

local function reserved_in(place)
  local reserved = 0
  for _, text in ipairs(redis.call('HVALS', at('leases'))) do
    reserved = reserved + part_of(place, read(text))
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

-- What stands against a cap: as it is kept, or else summed up, and kept from now on.
local function standing(place)
  local held = redis.call('HGET', at('counters:' .. place.period), place.field)
  if held then return parts(held) end
  local spent, reserved = spent_in(place), reserved_in(place)
  put_counter(place.period, place.field, spent, reserved)
  if place.period ~= 'total' then redis.call('EXPIRE', at('counters:' .. place.period), KEPT) end
  return spent, reserved
end

local function fields_of(claim)
  local fields = {}
  for _, scope in ipairs(claim.scopes) do
    table.insert(fields, 'dollars/' .. scope)
    table.insert(fields, 'tokens/' .. scope)
  end
  return fields
end

-- Moves those counters of a claim that are kept; another is summed up when somebody asks for it.
local function move(claim, spent, reserved)
  local fields = fields_of(claim)
  for _, period in ipairs({ claim.day, claim.day:sub(1, 7), 'total' }) do
    for index, held in ipairs(redis.call('HMGET', at('counters:' .. period), unpack(fields))) do
      if held then
        local before, set_aside = parts(held)
        local unit = index % 2 == 1 and 'dollars' or 'tokens'
        put_counter(period, fields[index], before + spent[unit], set_aside + reserved[unit])
      end
    end
  end
end

-- Leases

local function put_lease(id, claim)
  redis.call('HSET', at('leases'), id, written(claim))
end

local function extend(id, seconds)
  redis.call('ZADD', at('expiry'), string.format('%.6f', now + seconds), id)
end

local function release(id)
  redis.call('HDEL', at('leases'), id)
  redis.call('ZREM', at('expiry'), id)
end

-- Ends a lease with a row. What goes is taken away first: where memory is short, Redis looks at a
-- script's first write only, and this one needs no room. So what was spent can always be booked.
local function finish(id, claim, state, counted, bill)
  local before = amounts(claim, -1)
  release(id)
  claim.state, claim.counted = state, counted
  with_bill(claim, bill)
  move(claim, amounts(claim, 1), before)
  book(id, claim)
end

local function expire(id, claim)
  if claim.state == 'forwarded' then
    finish(id, claim, 'presumed', 'false', claim.bill)
    redis.call('HSET', at('presumed'), id, claim.day)
  else
    finish(id, claim, 'refunded', 'false', NO_BILL)
  end
end

-- The claim by this name whose lease is not dealt with yet, and whether it still runs.
local function lease(id)
  local text = redis.call('HGET', at('leases'), id)
  if not text then return nil, false end
  return read(text), tonumber(redis.call('ZSCORE', at('expiry'), id) or 0) > now
end

local function sweep()
  local over = redis.call(
    'ZRANGEBYSCORE', at('expiry'), '-inf', string.format('%.6f', now), 'LIMIT', 0, AT_ONCE)
  for _, id in ipairs(over) do
    local claim = lease(id)
    if claim then expire(id, claim) else release(id) end
  end
  return #over
end
