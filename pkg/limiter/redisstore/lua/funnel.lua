-- funnel, token_bucket, smooth_bursty, leaky_queue: mirrors meter.step in pkg/limiter/meter.go.
-- args   limit, tick, leak, cost, burst, capacity, still, max_level, algorithm, initial (0 full, 1 empty),
--        linger in microseconds
-- state  A, span [, part]: the funnel is empty A microseconds after the epoch plus part/leak of a tick. The span is how
--        many microseconds A was ahead when this was written.
local function funnel(a, state, now, n, charge, denied, gone)
  if a[1] == 0 then return ban(n) end
  local tick, leak, cost, burst, capacity, still, max_level = a[2], a[3], a[4], a[5], a[6], a[7], a[8]
  local bursty, queue, starts_empty, linger = a[9] == SMOOTH_BURSTY, a[9] == LEAKY_QUEUE, a[10] == 1, a[11]
  local t = floor(now / tick)

  -- The funnel will be empty in so many ticks and part of one; its level, at most the highest one.
  local ahead, part, level, first, further = 0, 0, 0, starts_empty, false
  local full = (denied == FULL or bursty) and max_level or capacity
  local empty, span
  local s = state and numbers(state, 2, 3)
  if s then
    empty, span, part = s[1], s[2], s[3] or 0
    if empty < 0 or span > empty then empty, part = restart(), 0 end
    part = min(part, leak - 1)
  end
  local function level_of(ticks)
    if ticks > floor(full / leak) then return full, true end
    local units = ticks * leak + part
    return min(units, full), units > full
  end
  if empty then
    ahead = ceil(empty / tick) - t
    if starts_empty then
      local full_for = -ahead - min(1, part) -- in whole ticks
      first = full_for >= linger / tick
    end
    if ahead >= 0 then level, further = level_of(ahead) end
  end
  if first then level = bursty and still or capacity end

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
  local cut, back = false, false
  if (not ok or further) and level > 0 and not first then
    level, cut, back = cut_to(level_of, level, further, empty, span, t, tick, leak, ahead, full)
    if cut then ok, charged = passes() end
  end
  local found = level
  if charged < 0 then
    local back = units(-charged, level)
    if charge == TAKE_BACK then back = min(back, (gone / tick - t) * leak) end -- the rest has leaked away
    level = max(0, level - back)
  elseif charged > 0 then
    level = with(charged)
  end

  local took = level ~= found or (first and n ~= 0) or back
  note_cut(cut and took)
  local resets = ahead + min(1, part) -- in whole ticks: of a state that is left as it is, as it says
  if took or first or cut or level == 0 then
    part = fmod(level, leak)
    ahead = (level - part) / leak
    if took or not cut then resets = ahead + min(1, part) end
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
  if resets > 0 then reset = after(resets) end
  if took and (level > 0 or starts_empty) then
    new = level > 0 and funnel_state(t * tick, level, leak, tick) or struct.pack('>dd', t * tick, 0)
  end
  local lasts = shelf_life(not cut and empty, now + reset + linger)
  return took, new, ok, passing(), retry, reset, wait, lasts == KEPT and KEPT or lasts - reset
end
