-- quick_funnel decides hits that pass, as most do, of a funnel or of a token bucket that starts full. It needs no span
-- of the state (see funnel.lua).
local function quick_funnel(state, now, n, tick, leak, cost, capacity, algorithm, starts_empty)
  if algorithm == SMOOTH_BURSTY or algorithm == LEAKY_QUEUE or starts_empty == 1 then return end
  local t, level = floor(now / tick), 0
  if state then
    local empty, part, _ = nil, 0
    if #state == 16 then
      empty = struct.unpack('>d', state)
    elseif #state == 24 then
      empty, _, part = struct.unpack('>ddd', state)
      if not (part >= 0 and part < 4294967296 and floor(part) == part) then return end
      if part >= leak then part = leak - 1 end
    end
    if not (empty and empty >= 0 and floor(empty) == empty) then return end
    local ahead = ceil(empty / tick) - t
    if ahead > floor(capacity / leak) then return end
    if ahead >= 0 then level = ahead * leak + part end
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
      write(KEYS[1], new, reset + linger)
      return struct.pack(ANSWER, 1, left, 0, reset, 0)
    end
  end
end
