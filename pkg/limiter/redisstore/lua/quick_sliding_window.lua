-- quick_sliding_window decides hits that pass, as most do, where the segments are as long as those of the state and their
-- counts have 4 bytes. Its last result is a step's linger.
local FEW = 64 -- counts
local ints = {}
local function quick_sliding_window(state, now, n, limit, tick, segments, segment, cap, max_count, oldest)
  local index = floor(now / segment)
  local first, inside, last, older, expiry = 0, 0, 0, '', 0
  if state then
    local count = (#state - 24) / 4
    if count < 1 or count > FEW or floor(count) ~= count then return end
    local newest, length, ends = struct.unpack('>ddd', state)
    if length ~= segment or floor(newest) ~= newest or not (newest <= index and ends >= 0) then return end
    local shift = index - newest
    if shift <= segments then
      count = math.min(count, segments + 1 - shift)
      ints[count] = ints[count] or '>' .. string.rep('I4', count)
      local counts = {struct.unpack(ints[count], state, 25)}
      for i = 1, count do
        if counts[i] > max_count then return end
        if i + shift > segments then last = counts[i] else inside = inside + counts[i] end
      end
      if shift == 0 then
        first, older, expiry = counts[1], string.sub(state, 29, 24 + 4 * count), ends
      else
        older = string.rep('\0', 4 * (shift - 1)) .. string.sub(state, 25, 24 + 4 * count)
      end
    end
  end
  local part = last
  if oldest == 2 then
    part = 0
  elseif oldest == 0 and last > 0 then
    local width = segment / tick
    part = ceil(last * (width - floor(fmod(now, segment) / tick)) / width)
  end
  local left = math.min(limit - inside - part, cap - first) - n
  local counted = first + n
  if left < 0 or counted > max_count or counted > 4294967295 then return end
  local ends = (index + (oldest == 2 and segments or segments + 1)) * segment
  return struct.pack('>dddI4', index, segment, ends, counted) .. older, left, ends - now,
    first > 0 and expiry == ends and KEPT or 0
end

if only and #ARGV[4] == 80 then
  local limit, tick, segments, segment, cap, max_count, oldest, step = struct.unpack('<dddddddd', ARGV[4])
  if step == SLIDING_WINDOW and limit > 0 then
    local new, left, reset, kept = quick_sliding_window(redis.call('MGET', KEYS[1])[1], now, only, limit, tick, segments,
      segment, cap, max_count, oldest)
    if new then
      write(KEYS[1], new, reset, kept)
      return struct.pack(ANSWER, 1, left, 0, reset, 0)
    end
  end
end
