-- sliding_window: mirrors slidingWindow.step in pkg/limiter/sliding_window.go.
-- args   limit, tick, segments, segment in microseconds, segment_cap, max_count,
--        oldest (0 proportional, 1 full, 2 none)
-- state  'A B c0 c1 .. cS': index of the newest segment, length of a segment in microseconds, and the counts,
--        newest first; zeros at the end are left out
local MOST_COUNTS, MOST_SEGMENT = 1001, 315360000000000 -- of limiter.MaxSegments, and limiter.MaxWindow

local function sliding_window(a, state, now, n, charge, denied, gone)
  local limit, tick, segments, segment, cap, max_count, oldest = a[1], a[2], a[3], a[4], a[5], a[6], a[7]
  if limit == 0 then return ban(n) end

  -- c[0] is the newest segment, c[segments] the one that is partly outside the window.
  local at, index, c = now, idiv(now, segment), {}
  for i = 0, segments do c[i] = 0 end
  local s = state and numbers(state, 3, MOST_COUNTS + 2)
  if s and (s[2] < 1 or s[2] > MOST_SEGMENT or s[1] * s[2] > now + GRACE) then s = restart(KEEP) end
  if s then
    local newest, length = s[1], s[2]
    if length ~= segment then
      for i = 0, #s - 3 do
        local pos = max(0, index - idiv((newest - i + 1) * length - 1, segment))
        if pos <= segments then c[pos] = min(c[pos] + s[i + 3], max_count) end
      end
    else
      local shift = index - newest
      if shift < 0 then index, at, shift = newest, newest * segment, 0 end
      for i = 0, min(#s - 3, segments - shift) do c[i + shift] = min(s[i + 3], max_count) end
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
    if charge == TAKE_BACK then -- from the segment that it was charged to
      newest = max(0, index - (gone / segment - whole))
    end
    for i = newest, segments do
      local b = min(back, c[i])
      c[i] = c[i] - b
      back = back - b
      if i < segments then inside = inside - b end
      changed = changed or b > 0
    end
  end

  -- The times are those of the state that is left, whose count i is kept[i + skipped].
  local from, length, kept, skipped, last = index, segment, c, 0, segments
  if not changed and s then from, length, kept, skipped, last = s[1], s[2], s, 3, #s - 3 end
  local function segment_of(i) return idiv((from - i + 1) * length - 1, segment) end

  -- exceeds is the newest segment whose count, and the newer ones, are more than most, and what room those leave.
  local function exceeds(most)
    local found, count, free = 0, 0, most
    for i = 0, last do
      local of = segment_of(i)
      if of ~= found then
        if count > free then break end
        free = free - count
        found, count = of, 0
      end
      count = min(count + kept[i + skipped], max_count)
    end
    if count <= free then return -1, 0, 0 end
    return found, count, free
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
      retry = moment - now
    end
  end

  local ends, reset, new = 0, 0, false
  for i = 0, last do
    if kept[i + skipped] > 0 then
      ends = (segment_of(i) + whole) * segment
      break
    end
  end
  if ends > at then reset = ends - now end
  if changed and reset > 0 then
    while c[last] == 0 do last = last - 1 end
    local words = {int(index), int(segment)}
    for i = 0, last do words[i + 3] = int(c[i]) end
    new = table.concat(words, ' ')
  end
  return changed, new, ok, room(), retry, reset
end
