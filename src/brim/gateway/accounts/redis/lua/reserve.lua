-- id, seconds, state, key, charge, names, and for each cap: its counter and its limit

local id, seconds, state, key, charge, names = unpack(ARGV, 1, 6)
local former, is_running = lease(id)
-- The first upstream got the request and may charge for it, even if a second one answers.
if former and former.state == 'sent' then state = 'sent' end
local reservation = reservation_of(string.format('%.6f', now), state, 'false', charge, names)

local is_active = redis.call('HEXISTS', at('keys'), key) == 1
  and redis.call('HEXISTS', at('revoked'), key) == 0
local has_ended = is_recorded(id) or (former and not is_running)
if has_ended or not is_active then return { 'invalid' } end

for index = 7, #ARGV, 2 do
  local place, limit = place_of(ARGV[index], reservation.day), tonumber(ARGV[index + 1])
  local spent, reserved = read_counter(place)
  -- A former reservation with the same id is released.
  if former then reserved = reserved - part_of(place, former) end
  if spent + reserved + reservation[place.unit] > limit then
    -- End all expired leases before rejecting anything.
    if sweep() > 0 then return { 'again' } end
    return { 'cap_reached', (index - 7) / 2, string.format('%.0f', spent),
      string.format('%.0f', reserved), string.format('%.6f', now) }
  end
end

put_lease(id, reservation)
extend(id, tonumber(seconds))
if former then update_counters(former, NOTHING, amounts(former, -1)) end
update_counters(reservation, NOTHING, amounts(reservation, 1))
return { 'reserved' }
