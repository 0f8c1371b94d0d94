local AT_LIMIT = 16 -- limiter.argLookAtLimit

-- quick_fixed_window decides hits that pass, as most do, of a window on the clock.
local function quick_fixed_window(state, now, n, limit, window)
  local start, count = now - fmod(now, window), 0
  if state then
    local since, counted = string.match(state, '^(%d+) (%d+)$')
    if not since then return end
    since, counted = tonumber(since), tonumber(counted)
    if since > now then return end
    if counted > 0 and since >= start then start, count = since - fmod(since, window), counted end
  end
  count = count + n
  if count > limit then return end
  return string.format('%.0f %.0f', start, count), limit - count, start + window - now
end

if only and #ARGV[4] == 48 then
  local limit, window, align, step = struct.unpack('<dddd', ARGV[4])
  if step == FIXED_WINDOW and fmod(align, AT_LIMIT) == 0 then
    local new, left, reset = quick_fixed_window(redis.call('MGET', KEYS[1])[1], now, only, limit, window)
    if new then
      redis.call('SET', KEYS[1], new, 'PX', ceil(reset / 1000) + spare)
      return struct.pack(ANSWER, 1, left, 0, reset, 0)
    end
  end
end
