-- id, seconds

local claim, is_running = lease(ARGV[1])
if not is_running then return 0 end
claim.state = 'forwarded'
put_lease(ARGV[1], claim)
extend(ARGV[1], tonumber(ARGV[2]))
return 1
