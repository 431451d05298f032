-- id

redis.call('ZREM', at('alerts_due'), ARGV[1])
redis.call('HDEL', at('alerts_attempts'), ARGV[1])
return 1
