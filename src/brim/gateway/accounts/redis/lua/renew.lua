-- seconds, ids

for index = 2, #ARGV do
  local _, is_running = lease(ARGV[index])
  if is_running then extend(ARGV[index], tonumber(ARGV[1])) end
end
return 1
