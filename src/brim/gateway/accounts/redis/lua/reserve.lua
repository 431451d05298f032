-- id, seconds, key, charge, names, state, and for each cap: its counter and its limit

local id, seconds, key, charge, names, state = unpack(ARGV, 1, 6)
local former, is_running = lease(id)
-- The first upstream got the request and may charge for it, even if a second one answers.
if former and former.state == 'sent' then state = 'sent' end
local reservation = reservation_of(string.format('%.6f', now), state, 'false', charge, names)

local is_active = redis.call('HEXISTS', at('keys'), key) == 1
  and redis.call('HEXISTS', at('revoked'), key) == 0
local has_ended = is_recorded(id) or (former and not is_running)
if has_ended or not is_active then return { 'invalid' } end

local time = string.format('%.6f', now)
local counted, running = {}, {}
local used = { 'reserved' }

-- A former reservation with the same id is released.

local function check_rate(index, period, unit, scope, limit)
  local count, held
  local is_former = former and is_one_of(former.scopes, scope)
  local amount = unit == 'requests' and 1 or reservation.tokens
  if period == 'now' then
    running[scope] = true
    count = redis.call('SCARD', at('running:' .. scope))
      - redis.call('SISMEMBER', at('running:' .. scope), id)
  else
    counted[scope] = true
    local sums
    sums, held = read_rates(scope)
    count = sums[unit]
    if is_former and second_of(former) > math.floor(now) - WINDOW then
      count = count - (unit == 'requests' and 1 or former.tokens)
    end
  end
  if count + amount > limit then
    return { 'rate_reached', index, string.format('%.0f', count), time, unpack(held or {}) }
  end
  table.insert(used, string.format('%.0f', count + amount))
end

local function check_cap(index, counter, limit)
  local place = place_of(counter, reservation.day)
  local spent, reserved = read_counter(place)
  if former then reserved = reserved - part_of(place, former) end
  if spent + reserved + reservation[place.unit] > limit then
    return { 'cap_reached', index, string.format('%.0f', spent), string.format('%.0f', reserved), time }
  end
end

for argument = 7, #ARGV, 2 do
  local index, limit = (argument - 7) / 2, tonumber(ARGV[argument + 1])
  local period, unit, scope = ARGV[argument]:match('^(%a+)/(%a+)/(.*)$')
  local rejection
  if period == 'minute' or period == 'now' then
    rejection = check_rate(index, period, unit, scope, limit)
  else
    rejection = check_cap(index, ARGV[argument], limit)
  end
  if rejection then
    -- End all expired leases before rejecting anything.
    if sweep() > 0 then return { 'again' } end
    return rejection
  end
end

if former then
  release(id, former)
  update_counters(former, NOTHING, amounts(former, -1))
  correct_rates(former, -1, -former.tokens)
end
put_lease(id, reservation)
extend(id, tonumber(seconds))
update_counters(reservation, NOTHING, amounts(reservation, 1))
for scope in pairs(counted) do count_rates(scope, reservation) end
for scope in pairs(running) do redis.call('SADD', at('running:' .. scope), id) end
return used
