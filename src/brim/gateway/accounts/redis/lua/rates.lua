-- scope

local sums = read_rates(ARGV[1])
return {
  string.format('%.0f', sums.requests), string.format('%.0f', sums.tokens),
  redis.call('SCARD', at('running:' .. ARGV[1])),
}
