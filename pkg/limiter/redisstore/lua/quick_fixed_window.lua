local AT_LIMIT = 16 -- limiter.argPeekAtLimit

-- Decides for windows that begin at multiples of their length since the epoch (align 0).
quick[FIXED_WINDOW] = function(limit, window, align)
  if fmod(align, AT_LIMIT) ~= 0 then return end
  local start = now - fmod(now, window)
  local ends = start + window
  local reset = ends - now
  return function(state, n)
    local after = reset
    if state then
      if #state ~= 24 then return end
      local since, count, expiry = unpack_from('>ddd', state)
      if not (count >= 0 and since <= now and expiry >= since) or count % 1 ~= 0 or since % 1 ~= 0 then return end
      if count > 0 and since >= start then
        n = n + count
        if expiry == ends then after = KEEPTTL end
      end
    end
    if n <= limit then return pack('>ddd', start, n, ends), limit - n, reset, after end
  end
end
