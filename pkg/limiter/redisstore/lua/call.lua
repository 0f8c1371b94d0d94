-- One call of the script decides a batch of requests. assemble in redisstore/script.go puts the script together.
--
-- KEYS[k]   the keys of the batch's counters, without duplicates
-- ARGV[1]   the time in microseconds since the Unix epoch, or '' for the clock of Redis
-- ARGV[2]   the channel on which to publish refunds; '' if the batch publishes none
-- ARGV[3]   for each request the index in ARGV of its plan, as doubles
-- ARGV[4]   for each hit the index in KEYS of its counter, as doubles; '' if the hits have different counters, in order
-- ARGV[5..] plans and policies, as doubles. Requests that differ only in their counters share a plan. A plan has for
--           each hit
--             policy  the index of its policy in ARGV
--             mode    0 enforce, 1 shadow, 2 quota. 8 + c for a hit that is charged c (step.Charge, or TAKE_OR_SPEND or
--                     TAKE_BACK of steps.lua) independently of the request's other hits, because the request is in
--                     several stores or slots, or has Hit.ByItself or Hit.TakenAt
--             group   for a quota its group, below 0 if never over; for 8 + TAKE_BACK the time at which the charge
--                     expires (see steps.lua)
--             n       the cost
--           A policy has the numbers of step.Algorithm's Args and of step.Dated, its reserve (Params.Reserve), the
--           number of the step (redisstore/script.go), charge_denied (1 none, 2 remaining, 3 full), and the largest
--           cost that ever fits.
-- answer    doubles. For a hit that is admitted without wait: remaining, reset_after. For another hit: DENIED or
--           ADMITTED, remaining, retry_after, reset_after, wait. Times are in microseconds; retry_after is -1 if no
--           wait helps. For an admitted hit of concurrency, wait is limiter.Decision.TakenAt. If a policy has a
--           reserve, the last double is the time of the decisions.
--           If the batch has a mode from 8 on, except TAKE_BACK as the only hit of a request, or a failed request, or a
--           restarted or cut counter, the answer is a list: the doubles, zeros for a failed request; the number (from
--           1) and the error of each failed request; the time of the decisions; the number of counters that were
--           restarted, because their state is unreadable; the number of states that were cut, because they were further
--           ahead than their policy allows.
--
-- Doubles are little-endian and concatenated in one string, because Redis parses one argument faster than hundreds.

local KEYS, ARGV, call, try = KEYS, ARGV, redis.call, redis.pcall
local pack, unpack_from, rep = struct.pack, struct.unpack, string.rep
local ceil, floor, fmod, max, min = math.ceil, math.floor, math.fmod, math.max, math.min
local ENFORCE, SHADOW, QUOTA, CHARGE = 0, 1, 2, 8 -- modes
local SMOOTH_BURSTY, LEAKY_QUEUE = 6, 7 -- limiter.Algorithm
local DENIED, ADMITTED = -1, -2 -- first number of a hit's answer
local SLACK = 1000000 -- limiter.slack

-- KEEPTTL, in place of the number of microseconds for which a state matters, keeps the key's current time to live.
local KEEPTTL = 'keepttl'

local now, spare = nil, 0
if ARGV[1] == '' then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
else
  -- Keys expire by the clock of Redis, which may differ from ARGV[1], so they live a day longer.
  now, spare = tonumber(ARGV[1]), 86400000
end

-- quick[step], from a quick_*.lua, takes a policy's numbers, and returns a function that decides hits that fit, the
-- most frequent case:
--   function(state, n) -> next_state, remaining, reset_after, after
-- after is the number of microseconds for which the next state matters, or KEEPTTL. The function returns nothing if the
-- hit does not surely fit, or if the state has another form. Then the algorithm's step decides. The steps are defined
-- only for a batch that needs them, because defining them takes longer than deciding a few hits.
local quick = {}

-- write writes a state that matters for after microseconds, or KEEPTTL, to a key whose value was found.
local function write(key, state, found, after)
  if after ~= KEEPTTL then
    call('SET', key, state, 'PX', ceil(after / 1000) + spare) -- rounded up: a key must not expire while it matters
  elseif #state ~= #found or try('SETRANGE', key, '0', state) ~= #found then -- takes half the time of SET
    call('SET', key, state, 'KEEPTTL') -- also if the user may not run SETRANGE
  end
end
