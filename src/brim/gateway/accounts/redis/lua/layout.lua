-- Migrates the stored data; returns its layout and the newest layout known here.

local migrations = {
  function() end,  -- 1: the keys listed in common.lua; each is created when it is written
}

local layout = tonumber(redis.call('GET', at('layout')) or '0')
if layout < #migrations then
  for number = layout + 1, #migrations do
    migrations[number]()
  end
  layout = #migrations
  redis.call('SET', at('layout'), layout)
end
return { layout, #migrations }
