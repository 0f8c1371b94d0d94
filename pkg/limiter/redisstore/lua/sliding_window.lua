-- sliding_window: mirrors slidingWindow.Step in pkg/limiter/sliding_window.go.
-- args   limit, tick, segments, segment in microseconds, segment_cap, max_count,
--        oldest (0 proportional, 1 full, 2 none)
-- state  A, B, end, and the counts, newest first, without zeros at the end. A is the index of the newest segment, B the
--        length of a segment, and end the time at which the key expires, both in microseconds. A count has 4 bytes. If
--        any count needs more, all counts are doubles after one additional byte.
local MOST_COUNTS, MOST_SEGMENT = 1001, 315360000000000 -- step.MaxSegments + 1, and step.MaxWindow in microseconds
local HEAD, MOST_INT = 24, 4294967295

-- segments_of returns the numbers of a state, or nil after restart.
local function segments_of(state)
  local long = (#state - HEAD) % 4 == 1
  local count = long and (#state - HEAD - 1) / 8 or (#state - HEAD) / 4
  if count ~= floor(count) or count < 0 or count > MOST_COUNTS then return restart() end
  local s = {struct.unpack('>ddd' .. (long and 'B' or '') .. string.rep(long and 'd' or 'I4', count), state)}
  if long then table.remove(s, 4) end
  for i = 1, count + 3 do
    if not whole(i == 1 and math.abs(s[i]) or s[i]) then return restart() end
  end
  s[count + 4] = nil -- unpack also returns the position after the state
  return s
end

local function sliding_window(a, state, now, n, charge, denied, expires)
  local limit, tick, segments, segment, cap, max_count, oldest = a[1], a[2], a[3], a[4], a[5], a[6], a[7]
  if limit == 0 then return ban(n) end

  -- c[0] is the newest segment, c[segments] the oldest, which is partly outside the window.
  local at, index, c = now, idiv(now, segment), {}
  for i = 0, segments do c[i] = 0 end
  local cut = false
  local s = state and segments_of(state)
  if s and (s[2] < 1 or s[2] > MOST_SEGMENT or s[1] * s[2] > EXACT) then s = restart() end
  if s then
    local newest, length = s[1], s[2]
    local shift = index - newest
    if shift == -1 and length == segment and newest * length - at <= SLACK then
      index, at, shift = newest, newest * length, 0
    end
    if length ~= segment or shift < 0 then
      for i = 0, #s - 4 do
        local pos = index - idiv((newest - i + 1) * length - 1, segment)
        cut = cut or pos < 0
        pos = max(0, pos)
        if pos <= segments then c[pos] = min(c[pos] + s[i + 4], max_count) end
      end
    else
      for i = 0, min(#s - 4, segments - shift) do c[i + shift] = min(s[i + 4], max_count) end
    end
  end

  local width = segment / tick
  local function part(count, into)
    if oldest == 2 then return 0 end
    if oldest == 1 then return count end
    return ceildiv(count * (width - idiv(into, tick)), width)
  end
  local into = fmod(at, segment)
  local inside = 0
  for i = 0, segments - 1 do inside = inside + c[i] end

  local function room() return max(0, min(limit - inside - part(c[segments], into), cap - c[0])) end

  local whole = oldest == 2 and segments or segments + 1
  local ok, charged = take(room(), n, charge, denied)
  local changed = charged > 0
  if charged > 0 then
    local more = min(c[0] + charged, max_count) - c[0]
    c[0] = c[0] + more
    inside = inside + more
  elseif charged < 0 then
    local back, newest = -charged, 0
    if charge >= TAKE_BACK then -- begin with the segment that was charged
      newest = max(0, index - (ceildiv(expires, segment) - whole))
    end
    for i = newest, segments do
      local b = min(back, c[i])
      c[i] = c[i] - b
      back = back - b
      if i < segments then inside = inside - b end
      changed = changed or b > 0
    end
  end

  -- exceeds returns the newest segment with which the sum of counts, from the newest on, is above most; its count; and
  -- most minus the sum of the newer counts. If the sum is never above most, it returns -1, 0, 0.
  local function exceeds(most)
    for i = 0, segments do
      if c[i] > most then return index - i, c[i], most end
      most = most - c[i]
    end
    return -1, 0, 0
  end

  local retry = 0
  if not ok then
    retry = NEVER
    local need = max(n, 1)
    if need <= min(limit, cap) then
      local moment = (exceeds(cap - need) + 1) * segment
      local found, count, free = exceeds(limit - need)
      if count > 0 then
        local leaves = (found + segments) * segment
        if oldest == 0 then
          leaves = leaves + (width - idiv(free * width, count)) * tick
        elseif oldest == 1 then
          leaves = leaves + segment
        end
        moment = max(moment, leaves)
      end
      retry = moment - at
    end
  end

  local ends, reset, new = 0, 0, false
  for i = 0, segments do
    if c[i] > 0 then
      ends = (index - i + whole) * segment
      break
    end
  end
  if ends > at then reset = ends - now end
  changed = note_cut(cut) or changed
  local linger = 0
  if changed and reset > 0 then
    local most, last = 0, segments
    while c[last] == 0 do last = last - 1 end
    for i = 0, last do most = max(most, c[i]) end
    local form = most > MOST_INT and 'B' .. string.rep('d', last + 1) or string.rep('I4', last + 1)
    if most > MOST_INT then
      new = struct.pack('>ddd' .. form, index, segment, ends, 0, unpack(c, 0, last))
    else
      new = struct.pack('>ddd' .. form, index, segment, ends, unpack(c, 0, last))
    end
    if s and s[3] == ends then linger = KEEPTTL end
  end
  return changed, new, ok, room(), retry, reset, 0, linger
end
