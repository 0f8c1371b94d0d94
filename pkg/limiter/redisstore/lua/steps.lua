-- What all steps share. They follow this file, and slowly.lua follows them, in a function that is called only for a
-- batch with a request that decide_quickly (batch.lua) does not decide. A step is
--   function(args, state, now, n, charge, denied, gone)
--     -> changed, next_state, allowed, remaining, retry_after, reset_after [, wait, linger]
-- wait of an admitted hit of concurrency is limiter.Decision.TakenAt.
-- state is the stored string, or false where there is none; next_state is a string, or false where the limit is fully
-- available again. A state is a few numbers as doubles, big-endian, one after the other. now is in microseconds since the
-- epoch, the other times are in microseconds. next_state matters for reset_after + linger. linger is 0 if left out, KEPT
-- where the key has this time to live already, and below 0 where there is no state but a reset_after: a window in which
-- nothing is counted. A step mirrors the Go step of the same name in pkg/limiter.
--
-- Only this script has the charge TAKE_BACK, with an n below 0: an earlier call charged -n, for a request that is denied
-- (split.go, docs/adr/0050) or that has ended (limiter.Hit.TakenAt, docs/adr/0085). gone is the time at which that call
-- expected the limit to be fully available again, in microseconds since the epoch. It is after now, and shows where in
-- the state the charge is. TAKE_BACK_OR_OLDEST is limiter.Hit.OrOldest.
--
-- Numbers are doubles: every one of them is a whole number below 2^53, which NewPolicy has made sure of.

local steps = {}
local early -- the number of the step that writes before the request is decided
local REMAINING, FULL = 2, 3 -- charge_denied
local TAKE_IF_FITS, TAKE_OR_PENALTY, PENALTY, LOOK, SPEND = 0, 1, 2, 3, 4 -- step.Charge
local TAKE_OR_SPEND = 5 -- of quotas: TAKE_IF_FITS, and SPEND if it does not fit; frame.lua makes these two of it
local TAKE_BACK, TAKE_BACK_OR_OLDEST = 6, 7
local NEVER = -1
local CONCURRENCY = 8 -- limiter.Algorithm
local HORIZON = 4503599627370496 -- 2^52
local EXACT = 9007199254740991 -- 2^53 - 1

-- int writes a whole number with all its digits, which tostring does not.
local function int(x) return string.format('%.0f', x) end

-- Dividing whole numbers 0 <= a < 2^53 and b > 0 as doubles and rounding to a whole number is exact: a quotient
-- that is not whole is at least 1/b away from the next whole q, and doubles near q <= a/b are closer than that.
local function idiv(a, b) return floor(a / b) end
local function ceildiv(a, b) return ceil(a / b) end

-- amount mirrors terms.amount: how many hits are charged for a cost of n that fits or not?
local function amount(ok, left, n, charge, denied)
  if charge == LOOK then return 0 end
  if n < 0 or (ok and charge ~= PENALTY and charge ~= SPEND) then return n end
  if charge == TAKE_IF_FITS then return 0 end
  if denied == FULL then return n end
  if denied == REMAINING or charge == SPEND then return min(n, left) end
  return 0
end

-- take mirrors terms.fits: does a cost of n pass where left hits would, and how many hits are charged?
local function take(left, n, charge, denied)
  local ok = n <= left
  if n < 0 then ok = true elseif n == 0 then ok = left >= 1 end
  return ok, amount(ok, left, n, charge, denied)
end

local reading -- the key of the hit that is decided

-- Only redis_cell writes before the request is decided: note keeps what the key held, and put_back restores it when the
-- request is denied or cannot be decided. A request of one hit has nothing to restore.
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

-- give_up ends the request; nothing of it has been written.
local function give_up(why)
  put_back()
  error('WEIR ' .. why, 0)
end

-- restart notes a state that cannot be read, so that Weir cannot have left it. It returns nil, which is no state, and the
-- step goes on with that. With keep the step deletes the state itself.
local function restart(keep)
  restarted[reading] = keep and 'kept' or 'dropped'
end
local KEEP = true

-- note_cut notes that a step has cut a state that was further ahead than its policy can put it. It returns what it got.
local function note_cut(cut)
  if cut then cuts[reading] = true end
  return cut
end

-- empties mirrors meter.empties: of a state of funnel.lua, and whether it is cut.
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

-- whole says whether x is a whole number from 0 on that is exact.
local function whole(x) return x ~= nil and x >= 0 and x <= EXACT and floor(x) == x end

-- numbers returns the numbers of a state. It restarts the counter where they are fewer than least or more than most.
-- Only the first may be below 0: a time before 1970.
local function numbers(state, least, most)
  local count = #state / 8
  if count ~= floor(count) or count < least or count > most then return restart() end
  local out = {struct.unpack('>' .. string.rep('d', count), state)}
  out[count + 1] = nil -- where the state ends
  for i = 1, count do
    if not whole(i == 1 and math.abs(out[i]) or out[i]) then return restart() end
  end
  return out
end

-- ban answers for a limit of 0, which has no state.
local function ban(n)
  if n < 0 then return false, nil, true, 0, 0, 0 end
  return false, nil, false, 0, NEVER, 0
end
