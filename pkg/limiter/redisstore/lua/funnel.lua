-- funnel, token_bucket, smooth_bursty, leaky_queue: mirrors meter.Step in pkg/limiter/meter.go.
-- args   limit, tick, leak, cost, burst, capacity, still, max_level, algorithm, initial (0 full, 1 empty),
--        linger in microseconds, highest level
-- state  A, span [, part]: the funnel is empty A microseconds after the epoch plus part/leak of a tick. The span is A
--        minus the time at which the state was written, in microseconds.
local function funnel(a, state, now, n, charge, denied, expires)
  if a[1] == 0 then return ban(n) end
  local tick, leak, cost, burst, capacity, still, max_level = a[2], a[3], a[4], a[5], a[6], a[7], a[8]
  local bursty, queue, starts_empty, linger = a[9] == SMOOTH_BURSTY, a[9] == LEAKY_QUEUE, a[10] == 1, a[11]
  local full = a[12]
  local t = floor(now / tick)

  local ahead, part, first, cut = 0, 0, starts_empty, false -- the funnel is empty in ahead ticks plus part/leak
  local empty, span
  local s = state and numbers(state, 2, 3)
  if s then
    empty, span = s[1], s[2]
    if empty < 0 or span > empty then s, empty = restart(), 0 end
    ahead, part, cut = empties(empty, span, s and s[3] or 0, t, tick, leak, full)
    local full_for = -ahead - min(1, part) -- time since which the bucket is full, in whole ticks
    first = starts_empty and full_for >= linger / tick
  end
  if first then
    local start = bursty and still or capacity
    part = fmod(start, leak)
    ahead = (start - part) / leak
  end
  local level = level_of(ahead, part, leak, full)

  local function passing()
    local from = level
    if bursty then from = level - cost elseif queue then from = max(level, still - cost) end
    return idiv(max(0, capacity - from), cost)
  end
  local function units(hits, room)
    if hits > idiv(room, cost) then return room end
    return hits * cost
  end
  local function with(hits)
    local to = level + units(hits, max_level - level)
    if queue then to = max(to, still) end
    return to
  end

  local function passes()
    local left = passing()
    if n > 0 and (bursty or queue) then
      local ok = n <= burst
      if bursty then ok = ok and left > 0 else ok = ok and with(n) <= capacity end
      local charged = amount(ok, left, n, charge, denied)
      return ok, bursty and min(burst, charged) or charged
    end
    return take(left, n, charge, denied)
  end
  local ok, charged = passes()
  local back = 0
  if (not ok or n < 0) and level > 0 and not first then
    back = behind(empty, span, t, tick)
    if back > 0 then
      level = level_of(ahead - back, part, leak, full)
      ok, charged = passes()
    end
  end
  local found = level
  if charged < 0 then
    local back = units(-charged, level)
    if charge >= TAKE_BACK then back = min(back, (idiv(expires, tick) - t) * leak) end -- the rest has already leaked
    level = max(0, level - back)
  elseif charged > 0 then
    level = with(charged)
  end

  local took = level ~= found or (first and n ~= 0) or back > 0
  cut = note_cut(took and (cut or back > 0))
  if took then
    part = fmod(level, leak)
    ahead = (level - part) / leak
  end
  local function after(ticks) return (t + ticks) * tick - now end
  local function leaks_to(low)
    local ticks = ahead - floor(low / leak)
    return part > fmod(low, leak) and ticks + 1 or ticks
  end
  local retry = 0
  if not ok then
    retry = NEVER
    local need = max(n, 1)
    if need <= burst then retry = after(leaks_to(bursty and capacity or capacity - need * cost)) end
  end
  local wait = 0
  if ok and charged > 0 then
    local departs = queue and level or found
    if departs > still then wait = after(ceildiv(departs - still, leak)) end
  end

  local reset, new = 0, false
  if ahead >= 0 and ahead + part > 0 then reset = after(ahead + min(1, part)) end
  if took and (level > 0 or starts_empty) then
    new = level > 0 and funnel_state(t * tick, level, leak, tick) or struct.pack('>dd', t * tick, 0)
  end
  local lasts = shelf_life(not cut and empty, now + reset + linger)
  return took, new, ok, passing(), retry, reset, wait, lasts == KEEPTTL and KEEPTTL or lasts - reset
end
