local AT_LIMIT = 16 -- limiter.argLookAtLimit

-- quick_fixed_window decides hits that pass, as most do, of a window on the clock. Its last result is a step's linger.
local function quick_fixed_window(state, now, n, limit, window)
  local start, count, expiry = now - fmod(now, window), 0, 0
  if state then
    if #state ~= 24 then return end
    local since, counted, ends = struct.unpack('>ddd', state)
    if not (since <= now and counted >= 0 and ends >= since) or floor(since) ~= since or floor(counted) ~= counted then return end
    if counted > 0 and since >= start then start, count, expiry = since - fmod(since, window), counted, ends end
  end
  count = count + n
  if count > limit then return end
  local ends = start + window
  return struct.pack('>ddd', start, count, ends), limit - count, ends - now, expiry == ends and KEPT or 0
end

if only and #ARGV[4] == 48 then
  local limit, window, align, step = struct.unpack('<dddd', ARGV[4])
  if step == FIXED_WINDOW and fmod(align, AT_LIMIT) == 0 then
    local new, left, reset, kept = quick_fixed_window(redis.call('MGET', KEYS[1])[1], now, only, limit, window)
    if new then
      write(KEYS[1], new, reset, kept)
      return struct.pack(ANSWER, 1, left, 0, reset, 0)
    end
  end
end
