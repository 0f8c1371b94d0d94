-- One call of the script decides a batch of requests. It is put together from this file, prelude.lua, the files of the
-- algorithms that the batch needs, and frame.lua, which mirrors limiter.Decide.
--
-- KEYS[i]   the counter of hit i of the batch; a key may occur more than once
-- ARGV[1]   the time in microseconds since the Unix epoch, or '' for Redis's own clock
-- ARGV[2]   the channel on which refunds are published; '' where the batch has none
-- ARGV[3]   the requests, as doubles: how many hits a request has, then for each hit
--             policy  1 is the first of ARGV[4..]
--             mode    0 enforce, 1 shadow, 2 quota; 8 + c for a hit of a request that lies in several stores or slots,
--                     or whose hits are charged each by itself: it is charged c (limiter.Charge, or TAKE_BACK or
--                     TAKE_OR_SPEND of prelude.lua) whatever becomes of the request's other hits
--             group   of quotas; for 8 + TAKE_BACK the time from which there is nothing to take back (see prelude.lua)
--             n       the cost
-- ARGV[4..] the policies, as doubles: the numbers of limiter.Policy.Args, then step (redisstore/script.go),
--           charge_denied (1 none, 2 remaining, 3 full), and the largest cost that can ever fit
-- answer    five doubles a hit: allowed (1 or 0), remaining, retry_after, reset_after, wait. Times are in microseconds;
--           retry_after is -1 where no wait helps.
--           A batch with a mode from 8 on, with a request that could not be decided or with a restarted counter answers
--           a list of four: these doubles, zeros for such a request; the number of each such request, from 1, and the
--           reason; the keys of restarted counters, whose state Weir cannot have left; the time of the decisions.
--
-- Doubles are little-endian, one after the other in a string: that is one argument to parse, not hundreds.

local ceil, floor, fmod = math.ceil, math.floor, math.fmod
local ENFORCE, SHADOW, QUOTA, CHARGE = 0, 1, 2, 8 -- modes
local SMOOTH_BURSTY, LEAKY_QUEUE = 6, 7 -- limiter.Algorithm

local REQUEST, ANSWER = '<ddddd', '<ddddd' -- a request with its first hit; the answer to a hit

local now, spare = nil, 0
if ARGV[1] == '' then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
else
  -- Keys expire by Redis's clock, which says nothing about a clock from outside: they live a day longer.
  now, spare = tonumber(ARGV[1]), 86400000
end

-- KEPT is the linger of a state that needs no other time to live than its key has already.
local KEPT = 'kept'

-- write writes a state that matters for so many microseconds. The expiry only collects garbage: it is never before.
local function write(key, state, after, kept)
  if kept == KEPT then
    redis.call('SET', key, state, 'KEEPTTL')
  else
    redis.call('SET', key, state, 'PX', ceil(after / 1000) + spare)
  end
end

-- only is the cost of the batch's only hit, if that is enforced and more than 0. The quick_*.lua files come next. Each
-- has a function that returns the next state, remaining and reset_after of a hit that passes, and nothing where the
-- hit does not pass, or may not: then its step decides, which calls the same function first. A batch of only one hit
-- is answered by it before the rest of the script is made, which takes longer than deciding while few requests come. It
-- uses no command that the rest does not use, so it needs no other rights.
local only
if #ARGV[3] == 40 then
  local _, _, mode, _, n = struct.unpack(REQUEST, ARGV[3])
  only = mode == ENFORCE and n > 0 and n
end
