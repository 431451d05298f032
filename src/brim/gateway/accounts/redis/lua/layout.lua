-- Brings what is stored up to date; says which layout it has, and which one is known here.

local migrations = {
  function() end,  -- 1: the names at the top of books.lua; each comes into being when it is written
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
