-- Code that all steps share. The steps follow this file, and slowly.lua follows the steps, all in one function, which
-- is called only for a batch with a request that decide_quickly (batch.lua) does not decide. A step is
--   function(args, state, now, n, charge, denied, expires)
--     -> changed, next_state, allowed, remaining, retry_after, reset_after [, wait, linger]
-- For an admitted hit of concurrency, wait is limiter.Decision.TakenAt. state is the stored string, or false without a
-- state. next_state is a string, or false if the limit is fully available again. A state consists of doubles,
-- big-endian and concatenated. now and expires are in microseconds since the epoch, the other times in microseconds.
-- next_state matters for reset_after + linger. linger is 0 if left out, KEEPTTL if the key already has the right time
-- to live, and below 0 if there is a reset_after without a state: a window with a count of 0. A step mirrors the Go
-- step of the same name in pkg/limiter.
--
-- The charge TAKE_BACK exists only in the script. Its n is below 0: an earlier call charged -n for a request that was
-- denied (split.go, docs/adr/0050) or has ended (limiter.Hit.TakenAt, docs/adr/0085). expires is the time at which that
-- call, whose policy may have been another, expected the limit to be fully available again. It is after now, and tells
-- the step where in the state the charge is. TAKE_BACK_OR_OLDEST is the same with limiter.Hit.OrOldest.
--
-- Numbers are doubles. NewPolicy makes sure that every number is an integer below 2^53, so that doubles are exact.

local steps = {}
local early -- number of the step that writes to Redis before the request is decided: redis_cell
local REMAINING, FULL = 2, 3 -- charge_denied
local TAKE_IF_FITS, TAKE_OR_PENALTY, PENALTY, PEEK, SPEND = 0, 1, 2, 3, 4 -- step.Charge
local TAKE_OR_SPEND = 5 -- for quotas: slowly.lua runs a step with TAKE_IF_FITS, then with SPEND if the hit does not fit
local TAKE_BACK, TAKE_BACK_OR_OLDEST = 6, 7
local NEVER = -1
local CONCURRENCY = 8 -- limiter.Algorithm
local HORIZON = 4503599627370496 -- 2^52
local EXACT = 9007199254740991 -- 2^53 - 1

-- int formats an integer with all its digits, unlike tostring.
local function int(x) return string.format('%.0f', x) end

-- The quotient of integers 0 <= a < 2^53 and b > 0 as a double rounds to the right integer: a quotient that is not an
-- integer is at least 1/b away from the next integer q, and doubles near q <= a/b are closer together than that.
local function idiv(a, b) return floor(a / b) end
local function ceildiv(a, b) return ceil(a / b) end

-- amount mirrors terms.amount: it returns the number of hits to charge for a cost of n that fits if ok.
local function amount(ok, left, n, charge, denied)
  if charge == PEEK then return 0 end
  if n < 0 or (ok and charge ~= PENALTY and charge ~= SPEND) then return n end
  if charge == TAKE_IF_FITS then return 0 end
  if denied == FULL then return n end
  if denied == REMAINING or charge == SPEND then return min(n, left) end
  return 0
end

-- take mirrors terms.fits: whether a cost of n fits where left hits remain, and the number of hits to charge.
local function take(left, n, charge, denied)
  local ok = n <= left
  if n < 0 then ok = true elseif n == 0 then ok = left >= 1 end
  return ok, amount(ok, left, n, charge, denied)
end

local reading -- key of the current hit

-- redis_cell writes to Redis before the request is decided. note saves the value of the key, and put_back restores it
-- if the request is denied or fails. A request of one hit needs no restoring.
local noted, alone = {}, false
local function note()
  if not alone and not noted[reading] then
    noted[reading] = {redis.call('GET', reading), redis.call('PTTL', reading)}
  end
end
local function put_back()
  for key, was in pairs(noted) do
    if not was[1] then
      redis.call('DEL', key)
    elseif was[2] < 0 then
      redis.call('SET', key, was[1])
    else
      redis.call('SET', key, was[1], 'PX', int(max(1, was[2])))
    end
  end
  noted = {}
end

-- give_up makes the request fail, and restores the keys that redis_cell wrote.
local function give_up(why)
  put_back()
  error('WEIR ' .. why, 0)
end

-- restart counts an unreadable state, which Weir cannot have written. It returns nil, and the step must go on without a
-- state. With KEEP the step must delete the state.
local function restart(keep)
  restarted[reading] = keep and 'kept' or 'dropped'
end
local KEEP = true

-- note_cut counts a state that the step has cut because it was further ahead than its policy allows. It returns cut.
local function note_cut(cut)
  if cut then cuts[reading] = true end
  return cut
end

-- empties mirrors meter.empties, for a state of funnel.lua.
local function empties(empty, span, part, t, tick, leak, full)
  local ahead, part = ceil(empty / tick) - t, min(part, leak - 1)
  local furthest = floor(full / leak)
  if rounded(span) <= rounded(furthest * tick) then return ahead, part, false end
  return floor((empty - span) / tick) + furthest - t, fmod(full, leak), ahead + min(1, part) > 0
end

-- behind mirrors meter.behind.
local function behind(empty, span, t, tick) return max(0, floor((empty - span) / tick) - t) end

-- level_of mirrors meter.level.
local function level_of(ahead, part, leak, full)
  if ahead < 0 then return 0 end
  if ahead > floor(full / leak) then return full end
  return min(ahead * leak + part, full)
end

-- whole reports whether x is an integer from 0 to EXACT.
local function whole(x) return x ~= nil and x >= 0 and x <= EXACT and floor(x) == x end

-- numbers returns the numbers of a state. It restarts the counter if there are fewer than least or more than most. Only
-- the first number may be below 0: a time before 1970.
local function numbers(state, least, most)
  local count = #state / 8
  if count ~= floor(count) or count < least or count > most then return restart() end
  local out = {struct.unpack('>' .. string.rep('d', count), state)}
  out[count + 1] = nil -- unpack also returns the position after the state
  for i = 1, count do
    if not whole(i == 1 and math.abs(out[i]) or out[i]) then return restart() end
  end
  return out
end

-- ban decides a hit for a limit of 0, which has no state.
local function ban(n)
  if n < 0 then return false, nil, true, 0, 0, 0 end
  return false, nil, false, 0, NEVER, 0
end
