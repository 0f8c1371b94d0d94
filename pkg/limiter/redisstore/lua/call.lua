-- A call of the script decides a batch of requests.
--
-- KEYS[i]   the counter of hit i of the batch; a key may occur more than once
-- ARGV[1]   the time in microseconds since the Unix epoch, or '' for Redis's own clock
-- ARGV[2]   the channel on which to tell of counters that hits are given back to; '' where none are
-- ARGV[3]   the requests, as doubles: how many hits a request has, then for each of its hits
--             policy (1 is the first below), mode (0 enforce, 1 shadow, 2 quota), group, cost n.
--           A request that is decided in several places (split.go) has other modes in each: TRY and PAY, which charge
--           what is added to them whatever becomes of the others, and UNDO, which takes a charge of n back
-- ARGV[4]   for each hit of mode UNDO the counter before and after that charge, as it was answered (as_told): two strings, each
--           after its length in four bytes; '' where there are none
-- ARGV[5..] the policies that they name, as doubles: the numbers of limiter.Policy.Args, then
--             step, charge_denied (1 none, 2 remaining, 3 full), the largest cost that can ever fit
-- answer    five doubles a hit: allowed (1 or 0), remaining, retry_after, reset_after, wait, in microseconds;
--           retry_after is -1 where no wait helps. Where requests could not be decided, or are to be TRIED: a list of
--           these doubles, zeros for what was not decided; a list with the number of each request that was not, from
--           1, and why; a list with the counter of each hit that was tried, before its request and after it; and a list
--           with the keys of the counters that start again, since Weir cannot have left the state that they had.
--
-- Doubles are little-endian, one after the other in a string: that is one argument to parse, not hundreds.

local ceil, floor, fmod = math.ceil, math.floor, math.fmod
local ENFORCE, SHADOW, QUOTA = 0, 1, 2
local SMOOTH_BURSTY, LEAKY_QUEUE = 6, 7 -- limiter.Algorithm

local REQUEST, ANSWER = '<ddddd', '<ddddd' -- a request with its first hit; the answer to a hit

local now, spare = nil, 0
if ARGV[1] == '' then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
else
  -- Keys expire by Redis's clock, which then says nothing about ours: they are kept a day longer.
  now, spare = tonumber(ARGV[1]), 86400000
end

-- only is the cost of the one hit of a call that has no other, if it is to be enforced and more than 0. Next come the
-- quick_*.lua of the algorithms that are needed. Each has a function that answers the next state, remaining and reset_after
-- of a hit that passes, or nothing where the hit does not, or may not: then its step, which calls the function first, too,
-- decides. And it answers such a call before anything else is made: where few requests come, so that nothing of this is in a
-- cache, making all else takes longer than deciding. It uses no command that the rest does not: who may run one may run the
-- other.
local only
if #ARGV[3] == 40 then
  local _, _, mode, _, n = struct.unpack(REQUEST, ARGV[3])
  only = mode == ENFORCE and n > 0 and n
end
