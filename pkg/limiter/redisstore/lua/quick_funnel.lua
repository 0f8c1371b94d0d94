-- The key of a funnel expires at a multiple of SHELF since the epoch, at the earliest when the funnel is empty. So most
-- hits find a key that lives long enough. Setting the time to live would take Redis longer than the rest of the hit.
local SHELF = 5000000 -- microseconds

-- shelf_life returns the time to live of a key whose state matters until ends, or KEEPTTL. old is the time at which the
-- funnel of the key's current state is empty, nil or false without a valid state.
local function shelf_life(old, ends)
  if old and ceil(old / SHELF) * SHELF >= ends then return KEEPTTL end
  return ceil(ends / SHELF) * SHELF - now
end

-- Decides for funnels, and for token buckets that start full.
quick[FUNNEL] = function(limit, tick, leak, cost, _, capacity, _, _, algorithm, starts_empty)
  if limit == 0 or algorithm == SMOOTH_BURSTY or algorithm == LEAKY_QUEUE or starts_empty == 1 then return end
  local t = floor(now / tick)
  local at, most = t * tick, floor(capacity / leak)
  local most_span = rounded(most * tick)
  return function(state, n)
    local level, empty, span, part = 0, nil, 0, 0
    if state then
      if #state == 16 then
        empty, span = unpack_from('>dd', state)
      elseif #state == 24 then
        empty, span, part = unpack_from('>ddd', state)
        if not (part >= 0 and part < 4294967296 and part % 1 == 0) then return end
        if part >= leak then part = leak - 1 end
      end
      if not (empty and empty >= 0 and empty % 1 == 0 and span <= most_span) then return end
      local ahead = ceil(empty / tick) - t
      if ahead > most then return end
      if ahead >= 0 then level = ahead * leak + part end
    end
    local left = level < capacity and floor((capacity - level) / cost) or 0
    if n > left then return end
    level = level + n * cost
    local ends = at + ceil(level / leak) * tick
    return funnel_state(at, level, leak, tick), left - n, ends - now, shelf_life(empty, ends)
  end
end
