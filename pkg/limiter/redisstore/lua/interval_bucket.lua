-- token_bucket with refill: interval: mirrors intervalBucket.Step in pkg/limiter/interval_bucket.go.
-- args   limit, window in microseconds, burst, max_level, initial (0 full, 1 empty), linger in microseconds
-- state  start, missing: start of the current interval, in microseconds since the epoch, and the tokens missing then
local function interval_bucket(a, state, now, n, charge, denied, expires)
  if a[1] == 0 then return ban(n) end
  local limit, window, burst, max_level, starts_empty, linger = a[1], a[2], a[3], a[4], a[5] == 1, a[6]

  local start, missing, first = now, starts_empty and burst or 0, starts_empty
  local s = state and numbers(state, 2, 2)
  if s then
    local since, lacking = min(s[1], now), min(s[2], max_level)
    local full = since + ceildiv(lacking, limit) * window
    if not (starts_empty and now >= full + linger) then
      first = false
      if now >= full then
        start, missing = now, 0
      else
        local batches = idiv(now - since, window)
        start, missing = since + batches * window, lacking - batches * limit
      end
    end
  end

  local ok, charged = take(max(0, burst - missing), n, charge, denied)
  if charge == TAKE_BACK then -- at most the tokens that refills have not yet replaced
    charged = max(charged, -ceildiv(expires - now, window) * limit)
  end
  local before = missing
  missing = min(max(0, missing + charged), max(missing, max_level))
  local function after(tokens) return start + ceildiv(tokens, limit) * window - now end
  local retry = 0
  if not ok then
    retry = NEVER
    local need = max(n, 1)
    if need <= burst then retry = after(missing - (burst - need)) end
  end

  local reset, new = 0, false
  if missing > 0 then reset = after(missing) else start = now end
  if missing > 0 or starts_empty then new = struct.pack('>dd', start, missing) end
  local back = s and s[1] > now
  local took = missing ~= before or (first and n ~= 0) or back or false
  note_cut(took and (back or s and s[2] > max_level))
  return took, new, ok, max(0, burst - missing), retry, reset, 0, linger
end
