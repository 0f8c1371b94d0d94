-- smooth_warming_up: mirrors smoothWarmingUp.Step in pkg/limiter/smooth_warming_up.go.
-- args   limit, tick, leak, cost, capacity, max_level, idle in ticks, gain, full, permit, warm, grid, num, den,
--        max_cost in hits
-- state  stored, full, A, span [, part]: A, span and part are a state of funnel.lua, and say when the next request is
--        free to go. stored is the content of the permit store at that time, and full the store's size, in grains.
local function smooth_warming_up(a, state, now, n, charge, denied)
  if a[1] == 0 then return ban(n) end
  local tick, leak, cost, capacity, max_level, idle = a[2], a[3], a[4], a[5], a[6], a[7]
  local gain, full, permit, warm, grid, num, den = a[8], a[9], a[10], a[11], a[12], a[13], a[14]
  local max_cost = a[15]
  local t = idiv(now, tick)

  -- share converts a stored amount after a rule change, so that the store is as full as before, relative to its size.
  local function share(stored, of)
    if of == full then return min(stored, of) end
    local step = idiv(of, 67108864) + 1
    local part, whole = idiv(min(stored, of), step), max(1, idiv(of, step))
    return idiv(full, whole) * part + idiv(fmod(full, whole) * part, whole)
  end

  local ahead, part, stored, cut = 0, 0, full, false
  local empty, span
  local s = state and numbers(state, 4, 5)
  if s then
    empty, span = s[3], s[4]
    if s[1] < 0 or span > empty then s = restart() end
  end
  if s then
    stored = share(s[1], s[2])
    ahead, part, cut = empties(empty, span, s[5] or 0, t, tick, leak, max_level)
    if ahead < 0 then
      stored = -ahead > idle and full or min(full, stored + (-ahead * leak - part) * gain)
      ahead, part = 0, 0
    end
  end
  local level = level_of(ahead, part, leak, max_level)

  local function units(hits, room)
    if hits > idiv(room, cost) then return room end
    return hits * cost
  end
  local function extra(x)
    local above = idiv(max(0, 2 * x - warm), grid)
    local square = above * above
    return idiv(square, den) * num + idiv(fmod(square, den) * num, den)
  end
  local function spend(hits)
    local rest, room = 0, max_level - level
    if hits <= idiv(stored, permit) then rest = stored - hits * permit end
    return level + min(room, units(hits, room) + extra(stored) - extra(rest)), rest
  end
  local function take_back(hits) -- the reverse of spend: stored permits go back into the store
    local was = hits <= idiv(full - stored, permit) and stored + hits * permit or full
    return level - min(level, units(hits, level) + extra(was) - extra(stored)), was
  end
  local function passing()
    if level > capacity then return 0 end
    local lo, hi = 0, idiv(capacity - level, cost)
    while lo < hi do
      local mid = hi - idiv(hi - lo, 2)
      if spend(mid) <= capacity then lo = mid else hi = mid - 1 end
    end
    return lo + 1
  end

  local function fits() return n < 0 or (level <= capacity and n <= max_cost) end
  local ok = fits()
  local back = 0
  if (not ok or n < 0) and level > 0 then
    back = behind(empty, span, t, tick)
    if back > 0 then
      level = level_of(ahead - back, part, leak, max_level)
      ok = fits()
    end
  end
  local uses_left = charge == PENALTY or charge == SPEND or n > max_cost -- another charge uses left only if left is 0
  local left = uses_left and passing() or 0
  local charged = min(max_cost, amount(ok, left, n, charge, denied))
  local found, before = level, stored
  if charged < 0 and charge == TAKE_BACK then
    level, stored = take_back(-charged)
  elseif charged < 0 then
    level = level - units(-charged, level)
  elseif charged > 0 then
    level, stored = spend(charged)
  end

  local took = level ~= found or stored ~= before or back > 0
  note_cut(took and (cut or back > 0))
  if took then
    part = fmod(level, leak)
    ahead = (level - part) / leak
  end
  local function after(ticks) return (t + ticks) * tick - now end
  local retry, wait, reset, new = 0, 0, 0, false
  if n > max_cost then
    retry = NEVER
  elseif not ok then
    local ticks = ahead - idiv(capacity, leak)
    retry = after(part > fmod(capacity, leak) and ticks + 1 or ticks)
  end
  if ok and charged > 0 and found > 0 then wait = after(ceildiv(found, leak)) end
  if level > 0 or stored < full then
    reset = after(ahead + ceildiv(part + ceildiv(full - stored, gain), leak))
    if took then
      new = level > 0 and funnel_state(t * tick, level, leak, tick) or struct.pack('>dd', t * tick, 0)
      new = struct.pack('>dd', stored, full) .. new
    end
  end
  return took, new, ok, passing(), retry, reset, wait
end
