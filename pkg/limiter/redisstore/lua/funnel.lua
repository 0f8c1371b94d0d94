-- funnel and token_bucket: mirrors Policy.funnel in pkg/limiter/funnel.go.
-- args   limit, tick, leak, cost, burst, capacity, max_level
-- state  'A' or 'A B': the funnel is empty A microseconds after the epoch plus B/leak of a tick
local function funnel(a, state, now, n, charge, denied)
  if a[1] == 0 then return ban(n) end
  local tick, leak, cost, burst, capacity, max_level = a[2], a[3], a[4], a[5], a[6], a[7]
  local t = idiv(now, tick)

  local level = 0
  if state then
    local empty, part = tonumber(state), 0
    if not empty then
      local s = numbers(state)
      if #s ~= 2 then foreign() end
      empty, part = s[1], s[2]
    end
    local ahead = ceildiv(empty, tick) - t
    if ahead >= 0 then
      local full = denied == '3' and max_level or capacity
      if ahead > idiv(full, leak) then
        level = full
      else
        level = min(full, ahead * leak + min(part, leak - 1))
      end
    end
  end

  local left = idiv(max(0, capacity - level), cost)
  local ok, charged = take(left, n, charge, denied)

  local function units(hits, room)
    if hits > idiv(room, cost) then return room end
    return hits * cost
  end
  local before = level
  if charged < 0 then
    level = max(0, level - units(-charged, level))
  elseif charged > 0 then
    level = level + units(charged, max_level - level)
  end

  local retry = 0
  if not ok then
    retry = NEVER
    local need = max(n, 1)
    if need <= burst then
      retry = (t + ceildiv(level - (capacity - need * cost), leak)) * tick - now
    end
  end

  local reset, new = 0, false
  if level > 0 then
    reset = (t + ceildiv(level, leak)) * tick - now
    local part = fmod(level, leak)
    new = int((t + (level - part) / leak) * tick)
    if part > 0 then new = new .. ' ' .. int(part) end
  end
  return level ~= before, new, ok, idiv(max(0, capacity - level), cost), retry, reset
end
