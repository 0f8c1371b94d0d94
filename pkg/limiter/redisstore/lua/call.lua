-- One call of the script decides a batch of requests. It is put together from this file, the quick_*.lua of the
-- algorithms that the batch needs, steps.lua with the steps of these algorithms in it, and frame.lua.
--
-- KEYS[k]   the counters of the batch, each one time
-- ARGV[1]   the time in microseconds since the Unix epoch, or '' for Redis's own clock
-- ARGV[2]   the channel on which refunds are published; '' where the batch has none
-- ARGV[3]   for each request the index in ARGV of its plan, as doubles
-- ARGV[4]   for each hit the index in KEYS of its counter, as doubles; '' where the hits have a counter each, in order
-- ARGV[5..] plans and policies, as doubles. Requests that ask the same of different counters share a plan. A plan has
--           for each hit
--             policy  its index in ARGV
--             mode    0 enforce, 1 shadow, 2 quota; 8 + c for a hit of a request that lies in several stores or slots,
--                     or whose hits are charged each by itself: it is charged c (step.Charge, or TAKE_BACK or
--                     TAKE_OR_SPEND of steps.lua) whatever becomes of the request's other hits
--             group   of quotas, never over if below 0; for 8 + TAKE_BACK the time from which there is nothing to take back (see steps.lua)
--             n       the cost
--           A policy has the numbers of step.Algorithm's Args, then step (redisstore/script.go), charge_denied (1 none,
--           2 remaining, 3 full), and the largest cost that can ever fit.
-- answer    doubles: for an admitted hit without wait remaining, reset_after; for each other hit DENIED or ADMITTED,
--           then remaining, retry_after, reset_after, wait. Times are in microseconds; retry_after is -1 where no wait
--           helps. wait of an admitted hit of concurrency is limiter.Decision.TakenAt.
--           A batch with a mode from 8 on, with a request that could not be decided or with a restarted or cut counter
--           answers a list of five: these doubles, zeros for such a request; the number of each such request, from 1, and
--           the reason; the time of the decisions; how many counters were restarted, since their state cannot be read; how
--           many states were cut, since they were further ahead than their policy can put them.
--
-- Doubles are little-endian, one after the other in a string: that is one argument to parse, not hundreds.

local KEYS, ARGV, call, try = KEYS, ARGV, redis.call, redis.pcall
local pack, unpack_from, rep = struct.pack, struct.unpack, string.rep
local ceil, floor, fmod, max, min = math.ceil, math.floor, math.fmod, math.max, math.min
local ENFORCE, SHADOW, QUOTA, CHARGE = 0, 1, 2, 8 -- modes
local SMOOTH_BURSTY, LEAKY_QUEUE = 6, 7 -- limiter.Algorithm
local DENIED, ADMITTED = -1, -2 -- begin an answer
local SLACK = 1000000 -- limiter.slack

-- KEPT stands for the time to live that a key has already, where its next state needs no other one.
local KEPT = 'kept'

local now, spare = nil, 0
if ARGV[1] == '' then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
else
  -- Keys expire by Redis's clock, which says nothing about a clock from outside: they live a day longer.
  now, spare = tonumber(ARGV[1]), 86400000
end

-- quick[step], from a quick_*.lua, takes a policy's numbers, and returns a function that decides hits that pass, as
-- most do:
--   function(state, n) -> next_state, remaining, reset_after, after
-- after is how many microseconds the next state matters, or KEPT. It returns nothing where a hit does not pass, or may
-- not, or where the state is none that it knows. Then the algorithm's step decides. The steps are made only for a batch
-- that needs them, which takes longer than deciding a few hits.
local quick = {}

-- write writes a state that matters so many microseconds, or KEPT, where the key held found.
local function write(key, state, found, after)
  if after ~= KEPT then
    call('SET', key, state, 'PX', ceil(after / 1000) + spare) -- the expiry only collects garbage: it is never before
  elseif #state ~= #found or try('SETRANGE', key, '0', state) ~= #found then -- half of SET's time
    call('SET', key, state, 'KEEPTTL') -- also for a user without the right to SETRANGE
  end
end
