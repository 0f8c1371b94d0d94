-- funnel and token_bucket with engine: redis_cell: the redis-cell module decides, with CL.THROTTLE.
-- args   limit, window in seconds, burst
-- state  the state of the module, which the module writes; note saves the old value for put_back
--
-- CL.THROTTLE returns limited (1) or not (0), capacity, remaining, and retry-after and reset in whole seconds, rounded
-- down. A denied hit changes nothing. A quantity of 0 is never limited and changes nothing.

-- restart_cell deletes a state that the module cannot have written; see restart in steps.lua.
local function restart_cell()
  redis.call('DEL', reading)
  restart(KEEP)
  if noted[reading] then noted[reading] = {false} end
end

local function throttle(a, quantity)
  local function ask(hits)
    return redis.pcall('CL.THROTTLE', reading, int(a[3] - 1), int(a[1]), int(a[2]), int(hits))
  end
  local r = ask(quantity)
  if not r.err and r[5] > ceil(a[3] * a[2] / a[1]) + 1 then -- further ahead than this limit allows: cut it
    cuts[reading] = true
    redis.call('DEL', reading)
    ask(a[3])
    if noted[reading] then noted[reading] = {redis.call('GET', reading), redis.call('PTTL', reading)} end
    r = ask(quantity)
  end
  if not r.err then return r end
  local function says(text) return string.find(r.err, text, 1, true) end
  if says('Cell error') then
    if quantity < 0 and says('expire') then return nil end
    if restarted[reading] then give_up(r.err) end -- the state was not the cause
    restart_cell()
    return throttle(a, quantity)
  elseif says('nknown') then
    give_up('this Redis has no redis-cell module: load it (loadmodule /path/to/libredis_cell.so), ' ..
      'or remove engine: redis_cell from the rule')
  elseif says("can't run") or says('no permissions') then -- text of Redis 7.0; of later versions and Valkey
    give_up('the Redis user may not run CL.THROTTLE: add +cl.throttle to the ACL rules of the user, ' ..
      'or remove engine: redis_cell from the rule')
  end
  give_up(r.err)
end

-- refund calls CL.THROTTLE with a negative quantity. If that is more than the funnel holds, the module either fails
-- after it has written a wrong state, or writes a state that never expires. Then refund deletes the key, which means an
-- empty funnel.
local function refund(a, hits)
  local r = throttle(a, -hits)
  if r and redis.call('PTTL', reading) > 0 then return r end
  redis.call('DEL', reading)
  return {0, a[3], a[3], -1, 0}
end

local charged = {} -- keys that this script call has charged, which the state in this script does not show

local function redis_cell(a, state, _, n, charge)
  if a[1] == 0 then return ban(n) end
  local burst, interval = a[3], floor(a[2] * 1e9 / a[1]) -- nanoseconds per hit, rounded down as in the module
  local charges = n ~= 0 and n <= burst and (charge <= TAKE_OR_PENALTY or charge == TAKE_BACK)
  if charges then note() end
  local r
  if charges and n < 0 then
    r = refund(a, min(-n, burst))
  else
    r = throttle(a, charges and n or 0)
  end

  local fits = r[1] == 0
  if charges then charged[reading] = true end
  if n > 0 and charge == SPEND and r[3] > 0 then -- spend the last hits of a quota
    note()
    r = throttle(a, min(n, r[3]))
    charged[reading] = true
    fits = false
  end

  -- To compute remaining, the module divides microseconds by microseconds per hit, both rounded down to integers. So
  -- the true number of remaining hits is one of two neighbouring numbers. Up to 1,000 hits per second, the larger
  -- number is used. Above that, the smaller number is used, because it is often right.
  local lives, left = max(0, redis.call('PTTL', reading)), r[3]
  if interval < 1000000 then
    local is_new = n == 0 and not state and not charged[reading]
    left = is_new and burst or floor(left * floor(interval / 1000) * 1000 / interval)
  else
    left = floor(((left + 1) * floor(interval / 1000) - 1) * 1000 / interval)
  end
  left = min(burst, left)
  -- The key lives as long as its state matters, in milliseconds, which the module and Redis both round down.
  local reset = 0
  if left < burst or lives > 0 then reset = (lives + 2) * 1000 end

  local ok = fits
  if n == 0 then ok = left >= 1 elseif n > burst then ok = false end
  local retry = 0
  if not ok then
    retry = NEVER
    local need = max(n, 1)
    left = min(left, need - 1)
    if need <= burst then retry = max(1, reset - floor((burst - need) * interval / 1000)) end
  end
  return false, nil, ok, left, retry, reset
end
early = REDIS_CELL
