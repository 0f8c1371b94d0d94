-- quick_funnel decides hits that pass, as most do, of a funnel or of a token bucket that starts full. It needs no span
-- of the state (see funnel.lua): tonumber reads it as a fraction too small to matter.
local function quick_funnel(state, now, n, tick, leak, cost, capacity, algorithm, starts_empty)
  if algorithm == SMOOTH_BURSTY or algorithm == LEAKY_QUEUE or starts_empty == 1 then return end
  local t, level = floor(now / tick), 0
  if state then
    local empty, part = tonumber(state), 0
    if not empty then
      local cut = string.find(state, ' ', 1, true)
      if not cut then return end
      empty, part = tonumber(string.sub(state, 1, cut)), tonumber(string.sub(state, cut))
      if not (empty and part and part >= 0 and part < 4294967296 and floor(part) == part) then return end
      if part >= leak then part = leak - 1 end
    end
    local ahead = ceil(floor(empty) / tick) - t
    if ahead > floor(capacity / leak) then return end
    if ahead >= 0 then
      level = ahead * leak + part
    elseif not (empty >= 0) then
      return -- not a number, or below 0
    end
  end
  local left = level < capacity and floor((capacity - level) / cost) or 0
  if n > left then return end
  level = level + n * cost
  local reset = (t + ceil(level / leak)) * tick - now
  return funnel_state(t * tick, level, leak, tick), left - n, reset
end

if only and #ARGV[4] == 112 then
  local limit, tick, leak, cost, _, capacity, _, _, algorithm, starts_empty, linger, step =
    struct.unpack('<dddddddddddd', ARGV[4])
  if step == FUNNEL and limit > 0 then
    local new, left, reset =
      quick_funnel(redis.call('MGET', KEYS[1])[1], now, only, tick, leak, cost, capacity, algorithm, starts_empty)
    if new then
      redis.call('SET', KEYS[1], new, 'PX', ceil((reset + linger) / 1000) + spare)
      return struct.pack(ANSWER, 1, left, 0, reset, 0)
    end
  end
end
