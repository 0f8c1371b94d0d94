-- sliding_log and concurrency: mirrors slidingLog.Step in pkg/limiter/sliding_log.go, and concurrency.Step.
-- args   limit, window in microseconds (for concurrency the lease), algorithm
-- state  doubles (8 bytes each, big-endian): the total cost before the first entry, then for each entry, oldest first,
--        its time in microseconds and the total cost up to and including the entry. The fixed width allows bisection,
--        so that a step unpacks only a few entries of a long log.
local WORD, ENTRY, MOST_ENTRIES = 8, 16, 1000000 -- bytes, bytes, and the maximum of max_log_entries
local TIME, TOTAL = -7, 1 -- position of these numbers of entry i in the state, less i * ENTRY

local function sliding_log(a, state, now, n, charge, denied, expires)
  local limit, window = a[1], a[2]
  if limit == 0 then return ban(n) end

  local log = state or pack('>d', 0)
  local count = (#log - WORD) / ENTRY
  if count ~= floor(count) or count < 0 or count > MOST_ENTRIES then
    return sliding_log(a, restart(), now, n, charge, denied, expires)
  end
  local function time_of(i) return (unpack_from('>d', log, i * ENTRY + TIME)) end
  -- total_of(0) is the total cost before the first entry.
  local function total_of(i) return (unpack_from('>d', log, i * ENTRY + TOTAL)) end

  -- search returns the lowest i in 1..count whose time or total is at least least, or count + 1.
  local function search(word, least)
    local lo, hi = 1, count + 1
    while lo < hi do
      local mid = (lo + hi - (lo + hi) % 2) / 2
      if unpack_from('>d', log, mid * ENTRY + word) >= least then hi = mid else lo = mid + 1 end
    end
    return lo
  end

  local newest = count > 0 and time_of(count) or now
  if not whole(math.abs(newest)) then
    return sliding_log(a, restart(), now, n, charge, denied, expires)
  end
  local cut = newest > now
  if cut then -- the clock was set back: merge the entries after now into one entry at now
    local from = search(TIME, now + 1)
    log = string.sub(log, 1, WORD + (from - 1) * ENTRY) .. pack('>dd', now, total_of(count))
    count, newest = from, now
  end
  local first = search(TIME, now - window + 1)
  if first > 1 then
    log = string.sub(log, (first - 1) * ENTRY + 1)
    count = count - (first - 1)
  end
  local base, total = total_of(0), total_of(count)
  if not (whole(base) and whole(total) and base <= total) or (count > 0 and newest <= now - window) then
    return sliding_log(a, restart(), now, n, charge, denied, expires)
  end

  if charge == SPEND and a[3] == CONCURRENCY then charge = PEEK end
  local ok, charged = take(max(0, limit - (total - base)), n, charge, denied)
  charged = min(charged, HORIZON - (total - base))
  local changed = charged ~= 0
  if charged < 0 then
    changed = total ~= base
    local from, n, first = max(base, total + charged), -charged, nil
    if charge >= TAKE_BACK then -- take back only hits of the time of the charge
      local at = expires - window
      first = search(TIME, at)
      local last = first - 1
      while last < count and time_of(last + 1) == at do last = last + 1 end
      from = total_of(first - 1)
      n = min(n, total_of(last) - from)
    end
    if a[3] == CONCURRENCY and (charge < TAKE_BACK or charge == TAKE_BACK_OR_OLDEST and n == 0) then
      local kept = min(total, base - charged)
      local from = search(TOTAL, kept + 1)
      log = pack('>d', kept) .. string.sub(log, WORD + (from - 1) * ENTRY + 1)
      count = count - (from - 1)
    else -- mirrors cutOut: remove the n hits after the total from
      first = first or search(TOTAL, from + 1)
      local parts = {string.sub(log, 1, WORD + (first - 1) * ENTRY)}
      if total_of(first - 1) < from then parts[2] = pack('>dd', time_of(first), from) end
      local rest = first
      if rest <= count and total_of(rest) <= from + n then rest = search(TOTAL, from + n + 1) end
      for i = rest, count do parts[#parts + 1] = pack('>dd', time_of(i), total_of(i) - n) end
      log = table.concat(parts)
      count = (#log - WORD) / ENTRY
    end
  elseif charged > 0 then
    if total + charged > EXACT then
      local parts = {pack('>d', 0)}
      for i = 1, count do parts[i + 1] = pack('>dd', time_of(i), total_of(i) - base) end
      log, total = table.concat(parts), total - base
    end
    total = total + charged
    log = log .. pack('>dd', now, total)
    count = count + 1
    -- As prune does, merge each old entry into the next one if the newer entries already fill the limit.
    local drop = 0
    while count - drop > 1 and total - total_of(drop + 1) >= limit do drop = drop + 1 end
    if drop > 0 then
      log = string.sub(log, 1, WORD) .. string.sub(log, WORD + drop * ENTRY + 1)
      count = count - drop
    end
  end

  local retry = 0
  if not ok then
    retry = NEVER
    local need = max(n, 1)
    if need <= limit then
      local alive = total_of(count)
      local i = search(TOTAL, alive - limit + need)
      retry = time_of(i) + window - now
      if not whole(retry) or retry > window then return sliding_log(a, restart(), now, n, charge, denied, expires) end
    end
  end

  changed = note_cut(cut) or changed
  if count == 0 then return changed, false, ok, limit, retry, 0 end
  local holds = a[3] == CONCURRENCY and ok and n > 0 and charge <= TAKE_OR_PENALTY
  return changed, log, ok, max(0, limit - (total_of(count) - total_of(0))), retry, time_of(count) + window - now,
    holds and max(0, now) or 0
end
