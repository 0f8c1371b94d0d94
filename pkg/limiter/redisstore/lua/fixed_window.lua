-- fixed_window: mirrors fixedWindow.Step in pkg/limiter/fixed_window.go. args limit, window in microseconds, align (0
-- epoch, 1 first_hit, 2 calendar; with PeekAtLimit plus AT_LIMIT: then a
--        peek also fits if the count equals the limit, and a limit of 0 counts hits); with calendar the start times of
--        five windows, in microseconds since the epoch: the process's previous window, its current window, and the
--        next three
-- state  start, count, end: the start and end of the window, in microseconds since the epoch, and the hits counted in
--        the window. The end is only used for the time to live of the key.

local WEEK = 604800000000 -- microseconds

-- calendar_window returns the start and end of the window at a time, and the end of the next window. If args have no
-- such window, the clocks of Redis and of the process disagree. Windows of up to a week are then taken as equally long.
-- For longer windows, which differ in length, the request fails.
local function calendar_window(a, at)
  if at < a[4] or at >= a[7] then
    local window = a[2]
    if window > WEEK then give_up("Redis's clock and this process's are more than a window of the limit apart") end
    local start = a[5] + floor((at - a[5]) / window) * window
    return start, start + window, start + 2 * window
  end
  for i = 4, 6 do
    if at >= a[i] and at < a[i + 1] then return a[i], a[i + 1], a[i + 2] end
  end
end

local function fixed_window(a, state, now, n, charge, denied, expires)
  local limit, window, align, at_limit = a[1], a[2], a[3], false
  if align >= AT_LIMIT then align, at_limit = align - AT_LIMIT, true end
  if limit == 0 and not at_limit then charge = PEEK end

  local start, count, cut = now, 0, false
  if align == 0 then start = now - fmod(now, window) end
  local ends, later = start + window, start + 2 * window
  if align == 2 then
    start, ends, later = calendar_window(a, now)
  end
  local s = state and numbers(state, 3, 3)
  if s and s[2] > 0 then
    local since, counted = s[1], s[2]
    if align == 1 then
      if since + window > now then
        start, count, cut = min(since, now), counted, since > now
        ends = start + window
      end
    elseif since >= ends and since < later and ends - now <= SLACK then
      start, ends, count = ends, later, counted
    elseif since >= start then
      count, cut = counted, since >= ends
    end
  end
  local behind = max(0, start - now)
  if charge >= TAKE_BACK and expires ~= ends then charge = PEEK end -- the charge was in another window
  ends = ends - now

  local ok, charged = take(max(0, limit - count), n, charge, denied)
  local retry, needs = 0, max(n, 1)
  if at_limit and n == 0 then ok, needs = count <= limit, 0 end
  if not ok then
    retry = needs <= limit and ends - behind or NEVER
  end
  local before = count
  count = min(max(0, count + charged), HORIZON)
  if count == 0 and align == 1 then ends = window end
  local new, linger = false, -ends
  if count > 0 then
    new, linger = struct.pack('>ddd', start, count, now + ends), s and s[3] == now + ends and KEEPTTL or 0
  end
  return note_cut(cut) or count ~= before, new, ok, max(0, limit - count), retry, ends, 0, linger
end
