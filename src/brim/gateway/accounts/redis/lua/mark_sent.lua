-- id, seconds

local reservation, is_running = lease(ARGV[1])
if not is_running then return 0 end
reservation.state = 'sent'
put_lease(ARGV[1], reservation)
extend(ARGV[1], tonumber(ARGV[2]))
return 1
