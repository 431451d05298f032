-- id, seconds, state, key, bill, who, and for each cap: its counter, and how much it may be

local id, seconds, state, key, bill, who = unpack(ARGV, 1, 6)
local former, is_running = lease(id)
-- What a first upstream was sent may have been charged, though a second one is asked now.
if former and former.state == 'forwarded' then state = 'forwarded' end
local claim = claim_of(string.format('%.6f', now), state, 'false', bill, who)

local is_living = redis.call('HEXISTS', at('keys'), key) == 1
  and redis.call('HEXISTS', at('revoked'), key) == 0
local is_over = is_booked(id) or (former and not is_running)
if is_over or not is_living then return { 'unknown' } end

for index = 7, #ARGV, 2 do
  local place, most = place_of(ARGV[index], claim.day), tonumber(ARGV[index + 1])
  local spent, reserved = standing(place)
  -- The claim before this one by the same name gives back what it holds.
  if former then reserved = reserved - part_of(place, former) end
  if spent + reserved + claim[place.unit] > most then
    -- Nothing is refused before all leases that are over are dealt with.
    if sweep() > 0 then return { 'again' } end
    return { 'full', (index - 7) / 2, string.format('%.0f', spent),
      string.format('%.0f', reserved), string.format('%.6f', now) }
  end
end

put_lease(id, claim)
extend(id, tonumber(seconds))
if former then move(former, NOTHING, amounts(former, -1)) end
move(claim, NOTHING, amounts(claim, 1))
return { 'taken' }
