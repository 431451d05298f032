-- id, seconds, key, bill, counters, who, and for each cap: its counter, and how much it may be

local id, seconds, key, bill, counters, who = unpack(ARGV, 1, 6)
local former, is_running = lease(id)
local claim = claim_of(string.format('%.6f', now), 'reserved', 'false', bill, counters, who)

local is_living = redis.call('HEXISTS', at('keys'), key) == 1
  and redis.call('HEXISTS', at('revoked'), key) == 0
local is_over = is_booked(id) or (former and not is_running)
if is_over or not is_living then return { 'unknown' } end

-- What the claim before this one by the same name leaves free.
local function given_back(counter, period)
  if former and is_within(former.day, period) and counts(former.counters, counter) then
    return amount_of(former, counter)
  end
  return 0
end

local summed_up = {}

-- A counter of nothing begins with a claim that is taken.
local function keep_summed_up(is_taken)
  for _, counter in ipairs(summed_up) do
    if is_taken or counter.spent > 0 then keep(counter) end
  end
end

for index = 7, #ARGV, 2 do
  local counter, most = ARGV[index], tonumber(ARGV[index + 1])
  local found = standing(counter, claim.day)
  if not found.is_kept then table.insert(summed_up, found) end
  local reserved = found.reserved - given_back(counter, found.period)
  if found.spent + reserved + amount_of(claim, counter) > most then
    keep_summed_up(false)
    -- Nothing is refused before all leases that are over are dealt with.
    if sweep() > 0 then return { 'again' } end
    return { 'full', (index - 7) / 2, string.format('%.0f', found.spent),
      string.format('%.0f', reserved), string.format('%.6f', now) }
  end
end

keep_summed_up(true)
put_lease(id, claim)
extend(id, tonumber(seconds))
if former then move(former, NOTHING, amounts(former, -1)) end
move(claim, NOTHING, amounts(claim, 1))
return { 'taken' }
