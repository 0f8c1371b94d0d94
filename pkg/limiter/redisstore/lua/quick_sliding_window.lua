-- Decides for sliding windows whose state has segments of the policy's length, with counts of 4 bytes.
local FEW = 64 -- maximum number of counts
local ints = {}
quick[SLIDING_WINDOW] = function(limit, tick, segments, segment, cap, max_count, oldest)
  local index = floor(now / segment)
  local ends = (index + (oldest == 2 and segments or segments + 1)) * segment
  local reset, width = ends - now, segment / tick
  local remains = width - floor(fmod(now, segment) / tick) -- ticks of the oldest segment that are inside the window
  return function(state, n)
    local first, inside, last, older, after = 0, 0, 0, '', reset
    if state then
      local count = (#state - 24) / 4
      if count < 1 or count > FEW or count % 1 ~= 0 then return end
      local newest, length, expiry = unpack_from('>ddd', state)
      if length ~= segment or newest % 1 ~= 0 or not (newest <= index and expiry >= 0) then return end
      local shift = index - newest
      if shift <= segments then
        count = min(count, segments + 1 - shift)
        ints[count] = ints[count] or '>' .. rep('I4', count)
        local counts = {unpack_from(ints[count], state, 25)}
        for i = 1, count do
          local c = counts[i]
          if c > max_count then return end
          inside = inside + c
        end
        if count + shift > segments then
          last = counts[count]
          inside = inside - last
        end
        if shift == 0 then
          first, older = counts[1], string.sub(state, 29, 24 + 4 * count)
          if first > 0 and expiry == ends then after = KEEPTTL end
        else
          older = rep('\0', 4 * (shift - 1)) .. string.sub(state, 25, 24 + 4 * count)
        end
      end
    end
    local part = last
    if oldest == 2 then
      part = 0
    elseif oldest == 0 and last > 0 then
      part = ceil(last * remains / width)
    end
    local left = min(limit - inside - part, cap - first) - n
    local counted = first + n
    if left < 0 or counted > max_count or counted > 4294967295 then return end
    return pack('>dddI4', index, segment, ends, counted) .. older, left, reset, after
  end
end
